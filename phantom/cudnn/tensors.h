// Shapes of tensor and filter descriptors, for the functions that fill them in.
#pragma once

#include <cudnn.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace vramfit::phantom::cudnn {

struct Shape {
  cudnnDataType_t type{};
  cudnnTensorFormat_t format{};
  std::vector<int> dimensions;
  std::vector<int> strides;  // in elements
};

void* new_shape();
void delete_shape(const void* handle);
/// BAD_PARAM if it is no descriptor.
cudnnStatus_t set_shape(const void* handle, Shape shape);
Shape shape_of(const void* handle);

/// Without gaps; strides follow from the format.
Shape packed(cudnnDataType_t type, cudnnTensorFormat_t format, std::vector<int> dimensions);
std::size_t data_bytes(cudnnDataType_t type);
/// As the graph interface and bounds have them.
std::vector<std::int64_t> sizes_of(const Shape& shape);

}  // namespace vramfit::phantom::cudnn
