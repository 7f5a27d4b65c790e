#include "base/pickle/pickle_writer.h"

#include <limits>
#include <ostream>

#include "base/text/suggest.h"

namespace vramfit {

namespace {

// Opcodes of Lib/pickletools.py.
constexpr unsigned char kProtocol = 0x80, kStop = '.', kMark = '(', kEmptyDict = '}', kEmptyList = ']';
constexpr unsigned char kSetItems = 'u', kAppends = 'e', kUnicode = 'X', kInt1 = 'K', kInt4 = 'J', kLong1 = 0x8a;
constexpr unsigned char kTrue = 0x88, kFalse = 0x89, kTuple2 = 0x86, kPut4 = 'r', kGet4 = 'j';

constexpr std::int64_t kBatch = 1000;

}  // namespace

PickleWriter::PickleWriter(std::ostream& out) : out_(out) {
  put(kProtocol);
  put(2);
}

void PickleWriter::put_number(std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) put(static_cast<unsigned char>(value >> (8 * i)));
}

/// Items stand between a mark and the opcode that takes them; a new mark begins each batch.
void PickleWriter::before_value() {
  if (open_.empty()) return;
  Open& open = open_.back();
  if (open.items == kBatch) {
    put(open.is_list ? kAppends : kSetItems);
    open.items = 0;
  }
  if (open.items++ == 0) put(kMark);
}

PickleWriter& PickleWriter::begin_dict() {
  before_value();
  put(kEmptyDict);
  open_.push_back({.is_list = false});
  return *this;
}

PickleWriter& PickleWriter::begin_list() {
  before_value();
  put(kEmptyList);
  open_.push_back({.is_list = true});
  return *this;
}

PickleWriter& PickleWriter::end_dict() {
  if (open_.back().items > 0) put(kSetItems);
  open_.pop_back();
  return *this;
}

PickleWriter& PickleWriter::end_list() {
  if (open_.back().items > 0) put(kAppends);
  open_.pop_back();
  return *this;
}

PickleWriter& PickleWriter::key(std::string_view name) { return text(name); }

PickleWriter& PickleWriter::text(std::string_view value) {
  before_value();
  const std::string clean = replace_broken_utf8(value);
  const auto [entry, is_new] = memo_.try_emplace(clean, static_cast<std::uint32_t>(memo_.size()));
  if (is_new) {
    put(kUnicode);
    put_number(clean.size(), 4);
    out_ << clean;
  }
  put(is_new ? kPut4 : kGet4);
  put_number(entry->second, 4);
  return *this;
}

PickleWriter& PickleWriter::integer(std::int64_t value) {
  before_value();
  using Int4 = std::numeric_limits<std::int32_t>;
  if (value >= 0 && value < 256) {
    put(kInt1);
    put_number(static_cast<std::uint64_t>(value), 1);
  } else if (value >= Int4::min() && value <= Int4::max()) {
    put(kInt4);
    put_number(static_cast<std::uint64_t>(value), 4);
  } else {
    put(kLong1);
    put(8);
    put_number(static_cast<std::uint64_t>(value), 8);
  }
  return *this;
}

PickleWriter& PickleWriter::boolean(bool value) {
  before_value();
  put(value ? kTrue : kFalse);
  return *this;
}

PickleWriter& PickleWriter::pair(std::int64_t first, std::int64_t second) {
  before_value();
  for (const std::int64_t value : {first, second}) {
    put(kLong1);
    put(8);
    put_number(static_cast<std::uint64_t>(value), 8);
  }
  put(kTuple2);
  return *this;
}

void PickleWriter::stop() { put(kStop); }

}  // namespace vramfit
