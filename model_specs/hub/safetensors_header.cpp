#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text/suggest.h"
#include "model_specs/hub/safetensors.h"

namespace vramfit {
namespace {

struct StoredDtype {
  std::string_view name;
  int bits;
};
constexpr std::array kDtypes{
    StoredDtype{"BOOL", 8},    StoredDtype{"F4", 4},          StoredDtype{"F6_E2M3", 6},     StoredDtype{"F6_E3M2", 6},
    StoredDtype{"U8", 8},      StoredDtype{"I8", 8},          StoredDtype{"F8_E5M2", 8},     StoredDtype{"F8_E4M3", 8},
    StoredDtype{"F8_E8M0", 8}, StoredDtype{"F8_E4M3FNUZ", 8}, StoredDtype{"F8_E5M2FNUZ", 8}, StoredDtype{"I16", 16},
    StoredDtype{"U16", 16},    StoredDtype{"F16", 16},        StoredDtype{"BF16", 16},       StoredDtype{"I32", 32},
    StoredDtype{"U32", 32},    StoredDtype{"F32", 32},        StoredDtype{"C64", 64},        StoredDtype{"F64", 64},
    StoredDtype{"I64", 64},    StoredDtype{"U64", 64}};
constexpr std::size_t kMostDims = 64;

const StoredDtype* dtype_named(std::string_view name) {
  const auto* row = std::find_if(kDtypes.begin(), kDtypes.end(), [&](const StoredDtype& d) { return d.name == name; });
  return row == kDtypes.end() ? nullptr : row;
}

// Reads the header from the parser's events, so memory use depends on the tensors alone, whatever else the text holds.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const std::string& where) : where_(where) {}

  std::vector<StoredTensor> take() { return std::move(tensors_); }

  bool null() override { unexpected(); }
  bool boolean(bool /*value*/) override { unexpected(); }
  bool number_integer(number_integer_t /*value*/) override { unexpected(); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { unexpected(); }
  bool binary(binary_t& /*value*/) override { unexpected(); }

  bool number_unsigned(number_unsigned_t value) override {
    constexpr auto kMost = static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max());
    const bool is_number_list = place_ == Place::shape || place_ == Place::offsets;
    if (!is_number_list || value > kMost) unexpected();
    const std::size_t most = place_ == Place::shape ? kMostDims : 2;
    if (numbers_.size() == most) fail(fmt::format("{}: more than {} numbers", quoted_key(), most));
    numbers_.push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata) return true;
    if (place_ != Place::entry || field_ != Field::dtype) unexpected();
    dtype_ = dtype_named(value);
    if (dtype_ == nullptr) fail(fmt::format("{}: dtype \"{}\" is unknown", quoted_key(), printable(value, 40)));
    return true;
  }

  bool start_object(std::size_t /*size*/) override {
    if (place_ == Place::start) {
      place_ = Place::names;
    } else if (place_ == Place::names) {
      start_entry();
    } else {
      unexpected();
    }
    return true;
  }

  bool key(string_t& value) override {
    if (place_ == Place::names) {
      name_ = value;
    } else if (place_ == Place::entry) {
      start_field(value);
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::entry) finish_entry();
    place_ = place_ == Place::names ? Place::end : Place::names;
    return true;
  }

  bool start_array(std::size_t /*size*/) override {
    if (place_ != Place::entry || (field_ != Field::shape && field_ != Field::offsets)) unexpected();
    place_ = field_ == Field::shape ? Place::shape : Place::offsets;
    numbers_.clear();
    return true;
  }

  bool end_array() override {
    (place_ == Place::shape ? shape_ : offsets_) = numbers_;
    place_ = Place::entry;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& /*e*/) override {
    fail(fmt::format("not valid JSON at byte {} of the header", position));
  }

 private:
  enum class Place { start, names, metadata, entry, shape, offsets, end };
  enum class Field { none, dtype, shape, offsets };

  [[noreturn]] void fail(const std::string& why) const {
    throw ModelError(fmt::format("{}: malformed safetensors header: {}", printable(where_), why));
  }
  std::string quoted_key() const { return fmt::format("\"{}\"", printable(name_, 80)); }
  [[noreturn]] void unexpected() const {
    fail(place_ == Place::start ? "expected an object" : fmt::format("{}: unexpected value", quoted_key()));
  }

  void start_entry() {
    if (name_ == "__metadata__") {
      if (has_metadata_) fail("\"__metadata__\" is there twice");
      has_metadata_ = true;
      place_ = Place::metadata;
      return;
    }
    if (tensors_.size() == kMostTensors) fail(fmt::format("more than {} tensors", kMostTensors));
    place_ = Place::entry;
    field_ = Field::none;
    dtype_ = nullptr;
    shape_.reset();
    offsets_.reset();
  }

  void start_field(const std::string& key) {
    if (key == "dtype" && dtype_ == nullptr) {
      field_ = Field::dtype;
    } else if (key == "shape" && !shape_) {
      field_ = Field::shape;
    } else if (key == "data_offsets" && !offsets_) {
      field_ = Field::offsets;
    } else {
      fail(fmt::format("{}: unexpected or repeated key \"{}\"", quoted_key(), printable(key, 40)));
    }
  }

  void finish_entry() {
    if (dtype_ == nullptr || !shape_ || !offsets_ || offsets_->size() != 2) {
      fail(fmt::format("{}: needs dtype, shape and two data_offsets", quoted_key()));
    }
    std::int64_t bits = dtype_->bits;
    bool overflows = false;
    for (const std::int64_t dim : *shape_) overflows = __builtin_mul_overflow(bits, dim, &bits) || overflows;
    const std::int64_t begin = offsets_->front(), end = offsets_->back();
    if (overflows || bits % 8 != 0 || begin > end || end - begin != bits / 8) {
      fail(fmt::format("{}: data_offsets [{}, {}] don't agree with dtype and shape", quoted_key(), begin, end));
    }
    tensors_.push_back(StoredTensor{std::move(name_), dtype_->name, std::move(*shape_), 0, begin, Bytes{end - begin}});
    name_.clear();
  }

  const std::string& where_;
  Place place_ = Place::start;
  Field field_ = Field::none;
  bool has_metadata_ = false;
  std::string name_;
  const StoredDtype* dtype_ = nullptr;
  std::vector<std::int64_t> numbers_;
  std::optional<std::vector<std::int64_t>> shape_, offsets_;
  std::vector<StoredTensor> tensors_;
};

void check_names(std::span<const StoredTensor> tensors, const std::string& where) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const StoredTensor& tensor : tensors) names.emplace_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return;
  throw ModelError(fmt::format("{}: malformed safetensors header: tensor \"{}\" is there twice", printable(where),
                               printable(*twice, 80)));
}

}  // namespace

std::int64_t header_length(std::string_view first_bytes, std::int64_t file_bytes, const std::string& where) {
  std::uint64_t length = 0;
  const bool is_whole = std::ssize(first_bytes) >= kLengthBytes && file_bytes >= kLengthBytes;
  for (std::size_t i = 0; is_whole && i < static_cast<std::size_t>(kLengthBytes); ++i) {
    length |= std::uint64_t{static_cast<unsigned char>(first_bytes[i])} << (8 * i);
  }
  if (!is_whole || length < 2) throw ModelError(fmt::format("{}: too short for a safetensors file", printable(where)));
  if (length > static_cast<std::uint64_t>(kLongestHeader)) {
    throw ModelError(
        fmt::format("{}: not a safetensors file: its header would be {} bytes long", printable(where), length));
  }
  const auto bytes = static_cast<std::int64_t>(length);
  if (bytes > file_bytes - kLengthBytes) {
    throw ModelError(
        fmt::format("{}: truncated: a header of {} bytes in a file of {}", printable(where), bytes, file_bytes));
  }
  return bytes;
}

std::vector<StoredTensor> parse_header(std::string_view header, std::int64_t file_bytes, const std::string& where) {
  HeaderReader reader(where);
  if (!header.starts_with('{')) {
    throw ModelError(
        fmt::format("{}: malformed safetensors header: it doesn't start with an object", printable(where)));
  }
  nlohmann::json::sax_parse(header.begin(), header.end(), &reader);
  std::vector<StoredTensor> tensors = reader.take();
  check_names(tensors, where);
  const auto place = [](const StoredTensor& t) { return std::pair(t.offset, t.bytes.n); };
  std::sort(tensors.begin(), tensors.end(), [&](const auto& a, const auto& b) { return place(a) < place(b); });
  const std::int64_t data_start = kLengthBytes + std::ssize(header);
  std::int64_t end = 0;
  for (StoredTensor& tensor : tensors) {
    if (tensor.offset != end) {
      throw ModelError(fmt::format("{}: malformed safetensors header: the data of \"{}\" starts at {}, not at {}",
                                   printable(where), printable(tensor.name, 80), tensor.offset, end));
    }
    end += tensor.bytes.n;
    if (end > file_bytes - data_start) break;
    tensor.offset += data_start;
  }
  if (end != file_bytes - data_start) {
    throw ModelError(fmt::format("{}: {}: its header describes {} bytes of data or more, the file holds {}",
                                 printable(where), end > file_bytes - data_start ? "truncated" : "trailing bytes", end,
                                 file_bytes - data_start));
  }
  return tensors;
}

}  // namespace vramfit
