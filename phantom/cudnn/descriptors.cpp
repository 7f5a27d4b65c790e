#include "phantom/cudnn/descriptors.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "phantom/cudnn/attention.h"
#include "phantom/cudnn/tensors.h"
#include "phantom/cudnn/workspaces.h"
#include "phantom/generate/generated.h"

namespace vramfit::phantom::cudnn {
namespace {

template <class Number>
Attribute number_attribute(cudnnBackendAttributeType_t type, Number value) {
  Attribute attribute{.type = type, .elements = std::vector<std::byte>(sizeof value), .descriptors = {}};
  std::memcpy(attribute.elements.data(), &value, sizeof value);
  return attribute;
}

Attribute int64_attribute(std::int64_t value) { return number_attribute(CUDNN_TYPE_INT64, value); }

Attribute descriptor_attribute(std::shared_ptr<const Descriptor> descriptor) {
  return {.type = CUDNN_TYPE_BACKEND_DESCRIPTOR, .elements = {}, .descriptors = {std::move(descriptor)}};
}

// The one engine configuration that every heuristic finds for an operation graph.
Attribute only_configuration(const Attribute* graph) {
  auto engine = std::make_shared<Descriptor>();
  engine->type = CUDNN_BACKEND_ENGINE_DESCRIPTOR;
  engine->finalized = true;
  engine->attributes[CUDNN_ATTR_ENGINE_GLOBAL_INDEX] = int64_attribute(0);
  if (graph != nullptr) engine->attributes[CUDNN_ATTR_ENGINE_OPERATION_GRAPH] = *graph;
  auto configuration = std::make_shared<Descriptor>();
  configuration->type = CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
  configuration->finalized = true;
  configuration->attributes[CUDNN_ATTR_ENGINECFG_ENGINE] = descriptor_attribute(std::move(engine));
  return descriptor_attribute(std::move(configuration));
}

struct ConvolutionNames {
  cudnnBackendDescriptorType_t operation;
  int x, w, y;
};

constexpr std::array kConvolutions{
    ConvolutionNames{CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
    ConvolutionNames{CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
    ConvolutionNames{CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY}};

// Of an operation that is a convolution; -1 of another.
std::int64_t bound_of(const Descriptor& operation) {
  const auto* names = std::find_if(kConvolutions.begin(), kConvolutions.end(),
                                   [&](const auto& each) { return each.operation == operation.type; });
  if (names == kConvolutions.end()) return -1;
  const Descriptor* x = inner(&operation, names->x);
  return convolution_bound({.x = sizes_of_tensor(x),
                            .w = sizes_of_tensor(inner(&operation, names->w)),
                            .y = sizes_of_tensor(inner(&operation, names->y)),
                            .element_bytes = element_bytes_of_tensor(x)});
}

// A convolution's engine takes what its algorithm needs, which is not published.
std::int64_t workspace_bytes(const Descriptor* configuration) {
  const Descriptor* engine = inner(configuration, CUDNN_ATTR_ENGINECFG_ENGINE);
  const Descriptor* graph = inner(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
  const Attribute* operations = graph == nullptr ? nullptr : graph->find(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  if (operations == nullptr) return 0;
  if (is_attention(operations->descriptors)) return attention_workspace(operations->descriptors);
  std::int64_t bound = -1;
  for (const auto& operation : operations->descriptors) bound = std::max(bound, bound_of(*operation));
  return bound < 0 ? 0 : generated::workspace("cuDNN convolution", bound);
}

}  // namespace

const Descriptor* inner(const Descriptor* outer, int name) {
  const Attribute* attribute = outer == nullptr ? nullptr : outer->find(name);
  return attribute == nullptr || attribute->descriptors.empty() ? nullptr : attribute->descriptors.front().get();
}

std::vector<std::int64_t> sizes_of_tensor(const Descriptor* tensor) {
  const Attribute* sizes = tensor == nullptr ? nullptr : tensor->find(CUDNN_ATTR_TENSOR_DIMENSIONS);
  if (sizes == nullptr || sizes->type != CUDNN_TYPE_INT64) return {};
  std::vector<std::int64_t> values(sizes->elements.size() / sizeof(std::int64_t));
  std::memcpy(values.data(), sizes->elements.data(), values.size() * sizeof(std::int64_t));
  return values;
}

std::int64_t element_bytes_of_tensor(const Descriptor* tensor) {
  const Attribute* type = tensor == nullptr ? nullptr : tensor->find(CUDNN_ATTR_TENSOR_DATA_TYPE);
  std::int32_t value = CUDNN_DATA_FLOAT;
  if (type != nullptr && type->elements.size() >= sizeof value)
    std::memcpy(&value, type->elements.data(), sizeof value);
  return static_cast<std::int64_t>(data_bytes(static_cast<cudnnDataType_t>(value)));
}

const Attribute* Descriptor::find(int name) const {
  const auto found = attributes.find(name);
  return found == attributes.end() ? nullptr : &found->second;
}

std::size_t element_bytes(cudnnBackendAttributeType_t type) {
  switch (static_cast<int>(type)) {
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    case CUDNN_TYPE_FRACTION:
      return sizeof(cudnnFraction_t);
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    default:
      return 4;  // float, int32 and enumerations
  }
}

std::shared_ptr<const Attribute> computed(const Descriptor& descriptor, int name) {
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
      return std::make_shared<Attribute>(only_configuration(descriptor.find(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)));
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT:
      return std::make_shared<Attribute>(int64_attribute(1));
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      return std::make_shared<Attribute>(
          int64_attribute(workspace_bytes(inner(&descriptor, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG))));
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
      return std::make_shared<Attribute>(int64_attribute(workspace_bytes(&descriptor)));
    case CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED:  // callers bar engines that use too much
      return std::make_shared<Attribute>(number_attribute(CUDNN_TYPE_INT32, std::int32_t{0}));
    default:
      return nullptr;
  }
}

}  // namespace vramfit::phantom::cudnn
