#include "base/pickle/pickle_reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"

namespace vramfit {
namespace {

constexpr std::int64_t kEmpty = -1;
constexpr int kOldest = 2, kNewest = 5;

/// Opcodes that no plain value needs, by the names that Python's pickletools gives them.
struct Refused {
  unsigned char code;
  std::string_view name;
};
constexpr std::array kRefused{
    Refused{'c', "GLOBAL"},
    Refused{0x93, "STACK_GLOBAL"},
    Refused{'R', "REDUCE"},
    Refused{'b', "BUILD"},
    Refused{'i', "INST"},
    Refused{'o', "OBJ"},
    Refused{0x81, "NEWOBJ"},
    Refused{0x92, "NEWOBJ_EX"},
    Refused{'P', "PERSID"},
    Refused{'Q', "BINPERSID"},
    Refused{0x82, "EXT1"},
    Refused{0x83, "EXT2"},
    Refused{0x84, "EXT4"},
    Refused{'B', "BINBYTES"},
    Refused{'C', "SHORT_BINBYTES"},
    Refused{0x8e, "BINBYTES8"},
    Refused{0x96, "BYTEARRAY8"},
    Refused{0x97, "NEXT_BUFFER"},
    Refused{0x98, "READONLY_BUFFER"},
    Refused{0x8f, "EMPTY_SET"},
    Refused{0x90, "ADDITEMS"},
    Refused{0x91, "FROZENSET"},
    Refused{'0', "POP"},
    Refused{'1', "POP_MARK"},
    Refused{'2', "DUP"},
    Refused{'I', "INT"},
    Refused{'L', "LONG"},
    Refused{'F', "FLOAT"},
    Refused{'S', "STRING"},
    Refused{'T', "BINSTRING"},
    Refused{'U', "SHORT_BINSTRING"},
    Refused{'V', "UNICODE"},
    Refused{'g', "GET"},
    Refused{'p', "PUT"},
    Refused{'d', "DICT"},
    Refused{'l', "LIST"},
};

}  // namespace

std::string_view pickle_kind_text(PickleKind kind) {
  constexpr std::array<std::string_view, 8> kTexts{"None",   "a boolean", "an integer", "a float",
                                                   "a text", "a list",    "a tuple",    "a dict"};
  return kTexts.at(static_cast<std::size_t>(kind));
}

/// The stack machine that a pickle is a program of, without the opcodes that make it one that can do harm.
class PickleMachine {
 public:
  PickleMachine(PickleDocument& document, const std::string& path, const PickleLimits& limits)
      : document_(document), path_(path), limits_(limits) {}

  void run() {
    if (take(1) != 0x80) fail("expected a pickle of protocol 2 or newer");
    const auto protocol = static_cast<int>(take(1));
    if (protocol < kOldest || protocol > kNewest) {
      fail(fmt::format("protocol {}; expected {} to {}", protocol, kOldest, kNewest));
    }
    while (true) {
      begun_ = at_;
      const auto code = static_cast<unsigned char>(take(1));
      if (code == '.') break;
      if (!number(code) && !text(code) && !container(code) && !memo(code)) refuse(code);
    }
    if (stack_.size() != 1 || !marks_.empty()) fail("STOP without exactly one value");
    document_.root_ = stack_.front();
  }

 private:
  using Value = PickleDocument::Value;

  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(fmt::format("{}: byte {}: {}", printable(path_), begun_, what));
  }

  [[noreturn]] void refuse(unsigned char code) const {
    const auto* const row = std::ranges::find(kRefused, code, &Refused::code);
    if (row == kRefused.end()) fail(fmt::format("0x{:02x} is no opcode of a pickle", code));
    fail(fmt::format("opcode {}{}: only plain values are read, and nothing is unpickled", row->name, named(code)));
  }

  /// The object that GLOBAL or STACK_GLOBAL asks for: " (os.system)".
  std::string named(unsigned char code) const {
    std::string module, name;
    if (code == 'c') {
      const std::string_view rest = std::string_view(document_.bytes_).substr(at_, 400);
      module = rest.substr(0, rest.find('\n'));
      const std::string_view after = rest.substr(std::min(rest.size(), module.size() + 1));
      name = after.substr(0, after.find('\n'));
    } else if (code == 0x93 && stack_.size() >= 2) {
      module = text_of(stack_[stack_.size() - 2]);
      name = text_of(stack_.back());
    }
    return module.empty() && name.empty() ? "" : fmt::format(" ({}.{})", printable(module, 80), printable(name, 80));
  }

  std::string_view text_of(std::uint32_t id) const {
    const PickleItem item(document_, id);
    return item.kind() == PickleKind::text ? item.text() : std::string_view{};
  }

  /// The next `count` bytes as a little-endian number; at most 8.
  std::uint64_t take(std::size_t count) {
    if (document_.bytes_.size() - at_ < count) fail("the file ends here");
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < count; ++i) {
      value |= static_cast<std::uint64_t>(static_cast<unsigned char>(document_.bytes_[at_ + i])) << (8 * i);
    }
    at_ += count;
    return value;
  }

  void push(const Value& value) {
    if (document_.values_.size() >= limits_.values) fail(fmt::format("more than {} values", limits_.values));
    stack_.push_back(static_cast<std::uint32_t>(document_.values_.size()));
    document_.values_.push_back(value);
  }

  void push_number(PickleKind kind, std::int64_t bits) { push({.kind = kind, .size = 0, .bits = bits}); }

  /// LONG1 and LONG4: two's complement of any length.
  std::int64_t long_number(std::uint64_t count) {
    if (count > 9) fail(fmt::format("an integer of {} bytes; expected at most 8", count));
    if (count == 0) return 0;
    const std::uint64_t low = take(std::min<std::uint64_t>(count, 8));
    if (count == 9) {  // a ninth byte may only repeat the sign
      const std::uint64_t sign = take(1);
      if (sign != (low >> 63 == 1 ? 0xffU : 0U)) fail("an integer of more than 64 bits");
      return static_cast<std::int64_t>(low);
    }
    const int unused = 64 - 8 * static_cast<int>(count);
    return static_cast<std::int64_t>(low << unused) >> unused;
  }

  bool number(unsigned char code) {
    switch (code) {
      case 'N':
        push_number(PickleKind::none, 0);
        return true;
      case 0x88:
        push_number(PickleKind::boolean, 1);
        return true;
      case 0x89:
        push_number(PickleKind::boolean, 0);
        return true;
      case 'J':
        push_number(PickleKind::integer, static_cast<std::int32_t>(take(4)));
        return true;
      case 'K':
        push_number(PickleKind::integer, static_cast<std::int64_t>(take(1)));
        return true;
      case 'M':
        push_number(PickleKind::integer, static_cast<std::int64_t>(take(2)));
        return true;
      case 0x8a:
        push_number(PickleKind::integer, long_number(take(1)));
        return true;
      case 0x8b:
        push_number(PickleKind::integer, long_number(take(4)));
        return true;
      case 'G': {  // the only number that is big-endian
        push_number(PickleKind::real, static_cast<std::int64_t>(__builtin_bswap64(take(8))));
        return true;
      }
      default:
        return false;
    }
  }

  bool text(unsigned char code) {
    const std::size_t length_bytes = code == 0x8c ? 1 : code == 'X' ? 4 : code == 0x8d ? 8 : 0;
    if (length_bytes == 0) return false;
    const std::uint64_t length = take(length_bytes);
    if (length > document_.bytes_.size() - at_) fail(fmt::format("a text of {} bytes, and the file ends", length));
    if (length > UINT32_MAX) fail(fmt::format("a text of {} bytes", length));
    push(
        {.kind = PickleKind::text, .size = static_cast<std::uint32_t>(length), .bits = static_cast<std::int64_t>(at_)});
    at_ += length;
    return true;
  }

  /// Where the values above the last mark begin; the mark is gone then.
  std::size_t pop_mark() {
    if (marks_.empty()) fail("nothing was marked");
    const std::size_t begin = marks_.back();
    marks_.pop_back();
    return begin;
  }

  /// Where the last `count` values of the stack begin.
  std::size_t last(std::size_t count) const {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() < floor + count) fail("too few values on the stack");
    return stack_.size() - count;
  }

  /// The values from `begin` on, which leave the stack, added to the container `value`.
  void fill(Value& value, std::size_t begin) {
    if (begin > stack_.size()) fail("too few values on the stack");
    const std::size_t count = stack_.size() - begin;
    references_ += count;
    if (references_ > limits_.references) fail(fmt::format("more than {} items", limits_.references));
    if (count > 0 && value.bits == kEmpty) {
      value.bits = static_cast<std::int64_t>(document_.containers_.size());
      document_.containers_.emplace_back();
    }
    if (count > 0) {
      auto& items = document_.containers_[static_cast<std::size_t>(value.bits)];
      items.insert(items.end(), stack_.begin() + static_cast<std::ptrdiff_t>(begin), stack_.end());
    }
    stack_.resize(begin);
  }

  void push_tuple(std::size_t begin) {
    Value tuple{.kind = PickleKind::tuple, .size = 0, .bits = kEmpty};
    fill(tuple, begin);
    push(tuple);
  }

  /// Adds the values from `begin` on to the container below them.
  void extend(PickleKind kind, std::size_t begin) {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (begin <= floor) fail("no container below the items");
    Value& container = document_.values_[stack_[begin - 1]];
    if (container.kind != kind) {
      fail(fmt::format("items for {}, found {}", pickle_kind_text(kind), pickle_kind_text(container.kind)));
    }
    if (kind == PickleKind::dict && (stack_.size() - begin) % 2 != 0) fail("a key without a value");
    fill(container, begin);
  }

  bool container(unsigned char code) {
    switch (code) {
      case '(':
        if (marks_.size() >= limits_.marks) fail(fmt::format("more than {} containers deep", limits_.marks));
        marks_.push_back(stack_.size());
        return true;
      case ']':
        push_number(PickleKind::list, kEmpty);
        return true;
      case '}':
        push_number(PickleKind::dict, kEmpty);
        return true;
      case ')':
        push_number(PickleKind::tuple, kEmpty);
        return true;
      case 0x85:
      case 0x86:
      case 0x87:
        push_tuple(last(code - 0x84U));
        return true;
      case 't':
        push_tuple(pop_mark());
        return true;
      case 'a':
        extend(PickleKind::list, last(1));
        return true;
      case 'e':
        extend(PickleKind::list, pop_mark());
        return true;
      case 's':
        extend(PickleKind::dict, last(2));
        return true;
      case 'u':
        extend(PickleKind::dict, pop_mark());
        return true;
      default:
        return false;
    }
  }

  /// Python numbers what it remembers from 0 on, so a place further away is no pickle of Python's.
  void remember(std::uint64_t place) {
    const std::uint32_t value = stack_[last(1)];
    if (place > memo_.size()) fail(fmt::format("memo {}; expected at most {}", place, memo_.size()));
    if (place == memo_.size()) {
      if (memo_.size() >= limits_.values) fail(fmt::format("more than {} values remembered", limits_.values));
      memo_.push_back(value);
    }
    memo_[place] = value;
  }

  void recall(std::uint64_t place) {
    if (place >= memo_.size()) fail(fmt::format("memo {} was never set", place));
    if (stack_.size() >= limits_.references) fail(fmt::format("more than {} items", limits_.references));
    stack_.push_back(memo_[place]);
  }

  bool memo(unsigned char code) {
    switch (code) {
      case 'q':
        remember(take(1));
        return true;
      case 'r':
        remember(take(4));
        return true;
      case 0x94:
        remember(memo_.size());
        return true;
      case 'h':
        recall(take(1));
        return true;
      case 'j':
        recall(take(4));
        return true;
      case 0x95:  // a frame says how much to read at once, which is all here already
        take(8);
        return true;
      default:
        return false;
    }
  }

  PickleDocument& document_;
  const std::string& path_;
  const PickleLimits& limits_;
  std::size_t at_ = 0, begun_ = 0, references_ = 0;
  std::vector<std::uint32_t> stack_, memo_;
  std::vector<std::size_t> marks_;  // where on the stack
};

PickleDocument::PickleDocument(std::string bytes, const std::string& path, const PickleLimits& limits)
    : bytes_(std::move(bytes)) {
  PickleMachine(*this, path, limits).run();
}

PickleItem PickleDocument::root() const { return {*this, root_}; }

double PickleItem::real() const { return std::bit_cast<double>(value().bits); }

std::string_view PickleItem::text() const {
  return std::string_view(document_->bytes_).substr(static_cast<std::size_t>(value().bits), value().size);
}

std::size_t PickleItem::size() const {
  if (value().bits == kEmpty) return 0;
  const std::size_t items = document_->containers_[static_cast<std::size_t>(value().bits)].size();
  return kind() == PickleKind::dict ? items / 2 : items;
}

PickleItem PickleItem::item(std::size_t i) const { return child(i); }

PickleItem PickleItem::child(std::size_t at) const {
  return {*document_, document_->containers_[static_cast<std::size_t>(value().bits)][at]};
}

}  // namespace vramfit
