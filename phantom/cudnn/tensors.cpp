// Tensor and filter descriptors of the interface without graphs: what they are told, they answer.
#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "phantom/core/visibility.h"
#include "phantom/cudnn/tensors.h"

namespace vramfit::phantom::cudnn {
namespace {

struct Shapes {
  std::mutex mutex;
  std::map<const void*, Shape> of;
};

// Never destroyed: programs give descriptors back while the process ends.
Shapes& shapes() {
  static auto* all = new Shapes;
  return *all;
}

}  // namespace

void* new_shape() {
  auto* handle = new char;  // an address that nothing else has
  const std::lock_guard lock(shapes().mutex);
  shapes().of[handle];
  return handle;
}

void delete_shape(const void* handle) {
  const std::lock_guard lock(shapes().mutex);
  if (shapes().of.erase(handle) != 0) delete static_cast<const char*>(handle);
}

cudnnStatus_t set_shape(const void* handle, Shape shape) {
  const std::lock_guard lock(shapes().mutex);
  const auto found = shapes().of.find(handle);
  if (found == shapes().of.end()) return CUDNN_STATUS_BAD_PARAM;
  found->second = std::move(shape);
  return CUDNN_STATUS_SUCCESS;
}

Shape shape_of(const void* handle) {
  const std::lock_guard lock(shapes().mutex);
  const auto found = shapes().of.find(handle);
  return found == shapes().of.end() ? Shape{} : found->second;
}

Shape packed(cudnnDataType_t type, cudnnTensorFormat_t format, std::vector<int> dimensions) {
  Shape shape{.type = type, .format = format, .dimensions = std::move(dimensions), .strides = {}};
  const std::size_t count = shape.dimensions.size();
  shape.strides.assign(count, 1);
  // Dimension 1 (channels) is innermost in NHWC, else the last.
  std::vector<std::size_t> inner_first;
  if (format == CUDNN_TENSOR_NHWC && count > 1) inner_first.push_back(1);
  for (std::size_t i = count; i-- > 0;) {
    if (!(format == CUDNN_TENSOR_NHWC && i == 1)) inner_first.push_back(i);
  }
  int stride = 1;
  for (const std::size_t i : inner_first) {
    shape.strides[i] = stride;
    stride *= shape.dimensions[i];
  }
  return shape;
}

std::size_t data_bytes(cudnnDataType_t type) {
  switch (static_cast<int>(type)) {
    case CUDNN_DATA_DOUBLE:
    case CUDNN_DATA_INT64:
      return 8;
    case CUDNN_DATA_HALF:
    case CUDNN_DATA_BFLOAT16:
      return 2;
    case CUDNN_DATA_INT8:
    case CUDNN_DATA_UINT8:
    case CUDNN_DATA_BOOLEAN:
    case CUDNN_DATA_FP8_E4M3:
    case CUDNN_DATA_FP8_E5M2:
      return 1;
    default:
      return 4;
  }
}

std::vector<std::int64_t> sizes_of(const Shape& shape) { return {shape.dimensions.begin(), shape.dimensions.end()}; }

}  // namespace vramfit::phantom::cudnn

using vramfit::phantom::cudnn::data_bytes;
using vramfit::phantom::cudnn::delete_shape;
using vramfit::phantom::cudnn::new_shape;
using vramfit::phantom::cudnn::packed;
using vramfit::phantom::cudnn::set_shape;
using vramfit::phantom::cudnn::Shape;
using vramfit::phantom::cudnn::shape_of;

namespace {

template <class Handle>
cudnnStatus_t create(Handle* handle) {
  if (handle == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  *handle = static_cast<Handle>(new_shape());
  return CUDNN_STATUS_SUCCESS;
}

std::vector<int> array(const int values[], int count) { return {values, values + std::max(count, 0)}; }

void put(const std::vector<int>& values, int room, int target[]) {
  std::copy_n(values.begin(), std::min<std::size_t>(values.size(), static_cast<std::size_t>(std::max(room, 0))),
              target);
}

}  // namespace

PHANTOM_EXPORT cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* tensor) { return create(tensor); }
PHANTOM_EXPORT cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* filter) { return create(filter); }

PHANTOM_EXPORT cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor) {
  delete_shape(tensor);
  return CUDNN_STATUS_SUCCESS;
}

PHANTOM_EXPORT cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filter) {
  delete_shape(filter);
  return CUDNN_STATUS_SUCCESS;
}

PHANTOM_EXPORT cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format,
                                                        cudnnDataType_t type, int n, int c, int h, int w) {
  return set_shape(tensor, packed(type, format, {n, c, h, w}));
}

PHANTOM_EXPORT cudnnStatus_t cudnnSetTensor4dDescriptorEx(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int n,
                                                          int c, int h, int w, int n_stride, int c_stride, int h_stride,
                                                          int w_stride) {
  return set_shape(
      tensor,
      {.type = type, .format = {}, .dimensions = {n, c, h, w}, .strides = {n_stride, c_stride, h_stride, w_stride}});
}

PHANTOM_EXPORT cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int count,
                                                        const int dimensions[], const int strides[]) {
  return set_shape(
      tensor, {.type = type, .format = {}, .dimensions = array(dimensions, count), .strides = array(strides, count)});
}

PHANTOM_EXPORT cudnnStatus_t cudnnSetTensorNdDescriptorEx(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format,
                                                          cudnnDataType_t type, int count, const int dimensions[]) {
  return set_shape(tensor, packed(type, format, array(dimensions, count)));
}

PHANTOM_EXPORT cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t tensor, int room,
                                                        cudnnDataType_t* type, int* count, int dimensions[],
                                                        int strides[]) {
  const Shape shape = shape_of(tensor);
  if (type != nullptr) *type = shape.type;
  if (count != nullptr) *count = static_cast<int>(shape.dimensions.size());
  if (dimensions != nullptr) put(shape.dimensions, room, dimensions);
  if (strides != nullptr) put(shape.strides, room, strides);
  return CUDNN_STATUS_SUCCESS;
}

PHANTOM_EXPORT cudnnStatus_t cudnnGetTensorSizeInBytes(const cudnnTensorDescriptor_t tensor, size_t* bytes) {
  if (bytes == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  const Shape shape = shape_of(tensor);
  std::size_t last = 0;  // the furthest element
  for (std::size_t i = 0; i < shape.dimensions.size(); ++i) {
    last += static_cast<std::size_t>(shape.dimensions[i] - 1) * static_cast<std::size_t>(shape.strides[i]);
  }
  *bytes = shape.dimensions.empty() ? 0 : (last + 1) * data_bytes(shape.type);
  return CUDNN_STATUS_SUCCESS;
}

PHANTOM_EXPORT cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                                        cudnnTensorFormat_t format, int k, int c, int h, int w) {
  return set_shape(filter, packed(type, format, {k, c, h, w}));
}

PHANTOM_EXPORT cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                                        cudnnTensorFormat_t format, int count, const int dimensions[]) {
  return set_shape(filter, packed(type, format, array(dimensions, count)));
}

PHANTOM_EXPORT cudnnStatus_t cudnnGetFilterNdDescriptor(const cudnnFilterDescriptor_t filter, int room,
                                                        cudnnDataType_t* type, cudnnTensorFormat_t* format, int* count,
                                                        int dimensions[]) {
  const Shape shape = shape_of(filter);
  if (type != nullptr) *type = shape.type;
  if (format != nullptr) *format = shape.format;
  if (count != nullptr) *count = static_cast<int>(shape.dimensions.size());
  if (dimensions != nullptr) put(shape.dimensions, room, dimensions);
  return CUDNN_STATUS_SUCCESS;
}
