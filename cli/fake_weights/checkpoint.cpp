#include "cli/fake_weights/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"
#include "base/files/result_file.h"
#include "base/json/json_writer.h"
#include "base/text/suggest.h"
#include "base/text/system_reason.h"
#include "model_specs/hub/safetensors.h"
#include "model_specs/parameters.h"

namespace vramfit {
namespace {

struct StoredName {
  Dtype dtype;
  std::string_view stored, torch;
};
constexpr std::array kNames{
    StoredName{Dtype::f32, "F32", "float32"},  StoredName{Dtype::bf16, "BF16", "bfloat16"},
    StoredName{Dtype::f16, "F16", "float16"},  StoredName{Dtype::i64, "I64", "int64"},
    StoredName{Dtype::i32, "I32", "int32"},    StoredName{Dtype::u8, "U8", "uint8"},
    StoredName{Dtype::f8_e4m3, "F8_E4M3", ""}, StoredName{Dtype::f8_e5m2, "F8_E5M2", ""},
};

const StoredName& name_of(Dtype dtype) { return *std::ranges::find(kNames, dtype, &StoredName::dtype); }

/// What the catalog adds to configurations, and what follows from the weights that are written.
constexpr std::array kLeftOut{"id", "aliases", "source", "published", "dtype", "torch_dtype"};

class HeaderWriter {
 public:
  explicit HeaderWriter(WeightsHeader& header) : header_(header) {
    json_.begin_object().key("__metadata__").begin_object().member("format", "pt").end_object();
  }

  void add(const std::string& name, const std::vector<std::int64_t>& shape, Dtype dtype) {
    Bytes bytes = dtype_bytes(dtype);
    for (const std::int64_t size : shape) bytes = size * bytes;
    json_.key(name).begin_object().member("dtype", name_of(dtype).stored).key("shape").begin_array();
    for (const std::int64_t size : shape) json_.integer(size);
    json_.end_array().key("data_offsets").begin_array().integer(header_.data.n);
    header_.data += bytes;
    json_.integer(header_.data.n).end_array().end_object();
    ++header_.tensors;
  }

  /// Padded by spaces, as the format allows, so that tensors are aligned.
  void finish() {
    std::string text = json_.end_object().take();
    text.back() = ' ';
    text.resize((text.size() + 7) / 8 * 8, ' ');
    if (std::ssize(text) > kLongestHeader) throw ModelError("the model has too many tensors for one safetensors file");
    for (std::uint64_t left = text.size(), i = 0; i < 8; ++i, left >>= 8) {
      header_.bytes += static_cast<char>(left & 0xFF);
    }
    header_.bytes += text;
  }

 private:
  WeightsHeader& header_;
  JsonWriter json_{JsonForm::one_line};
};

/// Nothing that is there is touched: the folder is new or empty.
void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const bool is_empty = !error && std::filesystem::is_empty(folder, error);
  if (error) throw FaultError(fmt::format("{}: can't be made a folder: {}", printable(folder), error.message()));
  if (!is_empty) throw InputError(fmt::format("DIR {}: is not empty; name a new folder", printable(folder)));
}

bool write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

std::string config_text(const ModelSpec& spec, Dtype dtype) {
  auto config = nlohmann::ordered_json::parse(spec.config_json);  // which read_model has checked
  for (const char* key : kLeftOut) config.erase(key);
  config["dtype"] = config["torch_dtype"] = std::string(name_of(dtype).torch);
  return config.dump(2) + "\n";
}

WeightsHeader weights_header(const ModelSpec& spec, Dtype dtype) {
  WeightsHeader header;
  HeaderWriter writer(header);
  for (const NamedShape& parameter : parameters(spec)) writer.add(parameter.name, parameter.shape, dtype);
  for (const NamedBuffer& buffer : buffers(spec)) {
    if (buffer.persistent) writer.add(buffer.name, buffer.shape, buffer.dtype == Dtype::f32 ? dtype : buffer.dtype);
  }
  writer.finish();
  return header;
}

void write_sparse(const std::string& path, const WeightsHeader& header) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (descriptor < 0) {
    throw FaultError(fmt::format("{}: can't be written: {}", printable(path), system_reason(errno)));
  }
  const std::int64_t size = (Bytes{std::ssize(header.bytes)} + header.data).n;
  const bool is_written = write_all(descriptor, header.bytes) && ::ftruncate(descriptor, size) == 0;
  const int error = errno;
  ::close(descriptor);
  if (is_written) return;
  ::unlink(path.c_str());
  throw FaultError(fmt::format("{}: {} bytes can't be written: {}", printable(path), size, system_reason(error)));
}

WeightsHeader write_checkpoint(const ModelSpec& spec, Dtype dtype, const std::string& folder, bool with_tokenizer) {
  WeightsHeader header = weights_header(spec, dtype);
  const std::string config = config_text(spec, dtype);
  const std::string tokenizer = with_tokenizer ? tokenizer_text(spec) : "";
  make_folder(folder);
  write_sparse(folder + "/model.safetensors", header);
  write_file(folder + "/config.json", config);
  if (with_tokenizer) {
    write_file(folder + "/tokenizer.json", tokenizer);
    write_file(folder + "/tokenizer_config.json", tokenizer_config_text(spec));
  }
  return header;
}

}  // namespace vramfit
