#include "executor/checkpoint/safetensors_header.h"

#include "base/error.h"
#include "base/json/json_writer.h"
#include "base/text/units.h"

namespace vramfit {
namespace {

const char* stored_name(Dtype dtype) {
  if (dtype == Dtype::f32) return "F32";
  if (dtype == Dtype::bf16) return "BF16";
  if (dtype == Dtype::f16) return "F16";
  if (dtype == Dtype::u8) return "U8";
  throw NotModelled("checkpoints of " + std::string(dtype_name(dtype)));
}

}  // namespace

std::int64_t entry_bytes(const HeaderEntry& entry) {
  std::int64_t bytes = dtype_bytes(entry.dtype).n;
  for (const std::int64_t dim : entry.shape) bytes = checked_mul(bytes, dim);
  return bytes;
}

std::string safetensors_header(std::span<const HeaderEntry> entries, bool framework) {
  JsonWriter header;
  header.begin_object();
  if (framework) header.key("__metadata__").begin_object().member("format", "pt").end_object();
  std::int64_t offset = 0;
  for (const HeaderEntry& entry : entries) {
    header.key(entry.name).begin_object().member("dtype", stored_name(entry.dtype)).key("shape").begin_array();
    for (const std::int64_t dim : entry.shape) header.integer(dim);
    const std::int64_t end = checked_add(offset, entry_bytes(entry));
    header.end_array().key("data_offsets").begin_array().integer(offset).integer(end).end_array().end_object();
    offset = end;
  }
  const std::string json = header.end_object().take();
  std::string text(8, '\0');
  const std::int64_t length = round_up(static_cast<std::int64_t>(json.size()), 8);
  for (std::size_t i = 0; i < 8; ++i)
    text[i] = static_cast<char>((static_cast<std::uint64_t>(length) >> (8 * i)) & 0xFFU);
  text += json;
  text.resize(static_cast<std::size_t>(length) + 8, ' ');
  return text;
}

}  // namespace vramfit
