// Bytes of safetensors files for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace vramfit::testing {

/// The length, the header as given, the data.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + data;
}

/// One tensor of a file to make: `data` are its bytes.
struct TensorToStore {
  std::string name, dtype, shape, data;  // shape as JSON: "[2, 3]"
};

inline std::string safetensors_bytes(const std::vector<TensorToStore>& tensors) {
  std::string header = R"({"__metadata__":{"format":"pt"})", data;
  for (const TensorToStore& tensor : tensors) {
    const std::string begin = std::to_string(data.size());
    data += tensor.data;
    header += ",\"" + tensor.name + R"(":{"dtype":")" + tensor.dtype + R"(","shape":)" + tensor.shape +
              ",\"data_offsets\":[" + begin + "," + std::to_string(data.size()) + "]}";
  }
  return safetensors_bytes(header + "}", data);
}

template <typename Number>
std::string raw_bytes(const std::vector<Number>& numbers) {
  std::string bytes(numbers.size() * sizeof(Number), '\0');
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

}  // namespace vramfit::testing
