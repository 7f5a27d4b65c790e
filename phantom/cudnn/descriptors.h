// Descriptors of the graph interface (cudnn_graph.h): named attributes, some of which are descriptors again.
#pragma once

#include <cudnn.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace vramfit::phantom::cudnn {

struct Descriptor;

struct Attribute {
  cudnnBackendAttributeType_t type{};
  std::vector<std::byte> elements;                             // values, unless the type is BACKEND_DESCRIPTOR
  std::vector<std::shared_ptr<const Descriptor>> descriptors;  // as they were when set
};

struct Descriptor {
  cudnnBackendDescriptorType_t type{};
  bool finalized = false;
  std::map<int, Attribute> attributes;

  /// Null if it was never set.
  const Attribute* find(int name) const;
};

/// The first descriptor that an attribute holds. Null if there is none.
const Descriptor* inner(const Descriptor* outer, int name);
/// Of a tensor's descriptor.
std::vector<std::int64_t> sizes_of_tensor(const Descriptor* tensor);
std::int64_t element_bytes_of_tensor(const Descriptor* tensor);

/// Bytes of an element in the arrays that the interface takes.
std::size_t element_bytes(cudnnBackendAttributeType_t type);

/// What cudnnBackendGetAttribute answers for attributes that cuDNN computes: engines found by a heuristic, workspace
/// sizes. Null for attributes that are only what was set.
std::shared_ptr<const Attribute> computed(const Descriptor& descriptor, int name);

}  // namespace vramfit::phantom::cudnn
