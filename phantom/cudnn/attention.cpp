#include "phantom/cudnn/attention.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>

namespace vramfit::phantom::cudnn {
namespace {

constexpr std::int64_t kOfEngine = 256;
constexpr std::size_t kHeads = 1;  // in [batch, heads, sequence, head dim]

std::optional<std::int64_t> id_of_tensor(const Descriptor* tensor) {
  const Attribute* id = tensor == nullptr ? nullptr : tensor->find(CUDNN_ATTR_TENSOR_UNIQUE_ID);
  std::int64_t value = 0;
  if (id == nullptr || id->elements.size() < sizeof value) return std::nullopt;
  std::memcpy(&value, id->elements.data(), sizeof value);
  return value;
}

bool is_product(const Descriptor& operation) { return operation.type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR; }

bool is_of_product(const Operations& operations, const Descriptor* tensor) {
  const auto id = id_of_tensor(tensor);
  return id && std::any_of(operations.begin(), operations.end(), [&](const auto& operation) {
           return is_product(*operation) &&
                  id_of_tensor(inner(operation.get(), CUDNN_ATTR_OPERATION_MATMUL_CDESC)) == id;
         });
}

// A product for each of the queries' heads, which is then summed into fewer: the gradient of keys or values that heads
// share. 0 of another operation.
std::int64_t summed_over_heads(const Operations& operations, const Descriptor& operation) {
  if (operation.type != CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) return 0;
  const Descriptor* from = inner(&operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
  const auto all = sizes_of_tensor(from);
  const auto shared = sizes_of_tensor(inner(&operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
  if (all.size() <= kHeads || shared.size() != all.size() || shared[kHeads] == all[kHeads]) return 0;
  if (!is_of_product(operations, from)) return 0;
  return std::accumulate(all.begin(), all.end(), element_bytes_of_tensor(from), std::multiplies<>());
}

}  // namespace

bool is_attention(const Operations& operations) {
  return std::count_if(operations.begin(), operations.end(), [](const auto& each) { return is_product(*each); }) > 1;
}

std::int64_t attention_workspace(const Operations& operations) {
  std::int64_t bytes = kOfEngine;
  for (const auto& operation : operations) bytes += summed_over_heads(operations, *operation);
  return bytes;
}

}  // namespace vramfit::phantom::cudnn
