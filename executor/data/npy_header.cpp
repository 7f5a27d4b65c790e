#include "executor/data/npy_header.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"

namespace vramfit {
namespace {

// The header is a Python dict literal with exactly three keys; this reads that and nothing else of Python.
class Dict {
 public:
  Dict(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  [[noreturn]] void fail(const std::string& why) const {
    throw InputError(fmt::format("data {}: .npy header: {}", printable(where_), why));
  }

  bool take(char c) {
    skip_space();
    if (text_.empty() || text_.front() != c) return false;
    text_.remove_prefix(1);
    return true;
  }

  void expect(char c) {
    if (!take(c)) fail(fmt::format("expected '{}' before \"{}\"", c, printable(text_, 20)));
  }

  std::string_view quoted() {
    skip_space();
    const char quote = text_.empty() ? '\0' : text_.front();
    if (quote != '\'' && quote != '"') fail(fmt::format("expected a string before \"{}\"", printable(text_, 20)));
    const std::size_t end = text_.find(quote, 1);
    if (end == std::string_view::npos) fail("a string that is never closed");
    const std::string_view inside = text_.substr(1, end - 1);
    text_.remove_prefix(end + 1);
    return inside;
  }

  bool boolean() {
    skip_space();
    for (const std::string_view word : {"True", "False"}) {
      if (!text_.starts_with(word)) continue;
      text_.remove_prefix(word.size());
      return word == "True";
    }
    fail(fmt::format("expected True or False before \"{}\"", printable(text_, 20)));
  }

  std::vector<std::int64_t> tuple() {
    expect('(');
    std::vector<std::int64_t> dims;
    while (!take(')')) {
      skip_space();
      std::int64_t dim = -1;
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), dim);
      if (error != std::errc{} || dim < 0) fail(fmt::format("bad size before \"{}\"", printable(text_, 20)));
      text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
      dims.push_back(dim);
      if (dims.size() > 2) fail("more than two dims: expected a list of token ids, or rows of them");
      if (!take(',')) {
        expect(')');
        break;
      }
    }
    return dims;
  }

  bool at_end() {
    skip_space();
    return text_.empty();
  }

 private:
  void skip_space() {
    const std::size_t first = text_.find_first_not_of(" \n\t\r");
    text_.remove_prefix(first == std::string_view::npos ? text_.size() : first);
  }

  std::string_view text_;
  const std::string& where_;
};

IntegerFormat integer_format(std::string_view descr, const Dict& dict) {
  constexpr std::string_view kSizes = "1248";
  const bool known = descr.size() == 3 && (descr[1] == 'i' || descr[1] == 'u') &&
                     kSizes.find(descr[2]) != std::string_view::npos &&
                     (descr[0] == '<' || (descr[2] == '1' && descr[0] == '|'));
  if (!known) {
    dict.fail(
        fmt::format("elements are \"{}\": expected little-endian integers, such as <u2 or <i4", printable(descr)));
  }
  return IntegerFormat{descr[2] - '0', descr[1] == 'i'};
}

std::size_t little_endian(std::string_view bytes) {
  std::size_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8U | static_cast<unsigned char>(bytes[i]);
  return value;
}

struct Fields {
  std::optional<bool> fortran_order;
  std::optional<std::string_view> descr;
  std::optional<std::vector<std::int64_t>> shape;

  void read(Dict& dict) {
    const std::string_view key = dict.quoted();
    dict.expect(':');
    if (key == "descr" && !descr) {
      descr = dict.quoted();
    } else if (key == "fortran_order" && !fortran_order) {
      fortran_order = dict.boolean();
    } else if (key == "shape" && !shape) {
      shape = dict.tuple();
    } else {
      dict.fail(fmt::format("unexpected or repeated key \"{}\"", printable(key)));
    }
  }
};

NpyHeader read_dict(Dict& dict) {
  Fields fields;
  dict.expect('{');
  while (!dict.take('}')) {
    fields.read(dict);
    if (dict.take(',')) continue;
    dict.expect('}');
    break;
  }
  if (!dict.at_end()) dict.fail("text after the closing brace");
  if (!fields.fortran_order || !fields.descr || !fields.shape) {
    dict.fail("needs the keys descr, fortran_order and shape");
  }
  if (*fields.fortran_order && fields.shape->size() > 1) {
    dict.fail("columns come first (fortran_order): save it again with numpy.ascontiguousarray");
  }
  if (fields.shape->empty()) dict.fail("a single number, not a list of token ids");
  NpyHeader header;
  header.format = integer_format(*fields.descr, dict);
  header.shape = *fields.shape;
  return header;
}

}  // namespace

NpyHeader parse_npy_header(std::string_view start, const std::string& where) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  constexpr std::size_t kVersionEnd = 8;
  const Dict nothing({}, where);
  if (start.size() < kVersionEnd + 4 || !start.starts_with(kMagic)) nothing.fail("not a .npy file");
  const int major = static_cast<unsigned char>(start[kMagic.size()]);
  if (major < 1 || major > 3) nothing.fail(fmt::format("format version {} is unknown", major));
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  const std::size_t length = little_endian(start.substr(kVersionEnd, length_bytes));
  const std::size_t begin = kVersionEnd + length_bytes;
  if (length > start.size() - begin) nothing.fail("longer than the file, or than 64 KiB");
  Dict dict(start.substr(begin, length), where);
  NpyHeader header = read_dict(dict);
  header.data_offset = static_cast<std::int64_t>(begin + length);
  return header;
}

}  // namespace vramfit
