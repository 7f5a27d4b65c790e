// Copies and fills. A form without a stream goes to the default one, and nothing runs late, so both are the same call.
#include "phantom/core/contents.h"
#include "phantom/core/graph.h"
#include "phantom/cuda/driver.h"

namespace phantom = vramfit::phantom;
using phantom::bytes_of;
using phantom::pointer;
using phantom::result;

namespace {

CUresult copy(void* target, const void* source, size_t bytes, CUstream stream = nullptr) {
  const phantom::Stream* const on = phantom::stream_behind(stream);
  if (on == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return result(
      phantom::submit(on, phantom::NodeKind::copy, [=] { return phantom::copy(target, source, bytes_of(bytes)); }));
}

CUresult fill(CUdeviceptr target, unsigned int value, int value_bytes, size_t count, CUstream stream = nullptr) {
  const phantom::Stream* const on = phantom::stream_behind(stream);
  if (on == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return result(phantom::submit(on, phantom::NodeKind::fill,
                                [=] { return phantom::fill(pointer(target), value, value_bytes, bytes_of(count)); }));
}

CUresult fill_rows(CUdeviceptr target, size_t pitch, unsigned int value, int value_bytes, size_t width, size_t height,
                   CUstream stream = nullptr) {
  for (size_t row = 0; row < height; ++row) {
    const CUresult error = fill(target + row * pitch, value, value_bytes, width, stream);
    if (error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

struct Side {
  char* start = nullptr;
  size_t pitch = 0, height = 0;
};

// Null for arrays, which only textures use.
char* base_of(CUmemorytype type, const void* host, CUdeviceptr device) {
  if (type == CU_MEMORYTYPE_ARRAY) return nullptr;
  return static_cast<char*>(type == CU_MEMORYTYPE_HOST ? const_cast<void*>(host)  // NOLINT(*-const-cast)
                                                       : pointer(device));
}

CUresult copy_rows(const Side& to, const Side& from, size_t width, size_t height, CUstream stream) {
  if (to.start == nullptr || from.start == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const phantom::Stream* const on = phantom::stream_behind(stream);
  if (on == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return result(phantom::submit(on, phantom::NodeKind::copy, [=] {
    return phantom::copy_rows(to.start, bytes_of(to.pitch), from.start, bytes_of(from.pitch), bytes_of(width),
                              bytes_of(height));
  }));
}

CUresult copy_2d(const CUDA_MEMCPY2D& c, CUstream stream) {
  char* const to = base_of(c.dstMemoryType, c.dstHost, c.dstDevice);
  char* const from = base_of(c.srcMemoryType, c.srcHost, c.srcDevice);
  if (to == nullptr || from == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return copy_rows({to + c.dstY * c.dstPitch + c.dstXInBytes, c.dstPitch, 0},
                   {from + c.srcY * c.srcPitch + c.srcXInBytes, c.srcPitch, 0}, c.WidthInBytes, c.Height, stream);
}

CUresult copy_3d(const CUDA_MEMCPY3D& c, CUstream stream) {
  char* const to = base_of(c.dstMemoryType, c.dstHost, c.dstDevice);
  char* const from = base_of(c.srcMemoryType, c.srcHost, c.srcDevice);
  if (to == nullptr || from == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  for (size_t z = 0; z < c.Depth; ++z) {
    const CUresult error =
        copy_rows({to + ((c.dstZ + z) * c.dstHeight + c.dstY) * c.dstPitch + c.dstXInBytes, c.dstPitch, 0},
                  {from + ((c.srcZ + z) * c.srcHeight + c.srcY) * c.srcPitch + c.srcXInBytes, c.srcPitch, 0},
                  c.WidthInBytes, c.Height, stream);
    if (error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

}  // namespace

PHANTOM_EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy(pointer(to), pointer(from), bytes);
}
PHANTOM_EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy(pointer(to), pointer(from), bytes, stream);
}
PHANTOM_EXPORT CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext /*of*/, CUdeviceptr from, CUcontext /*of*/,
                                     size_t bytes) {
  return copy(pointer(to), pointer(from), bytes);
}
PHANTOM_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext /*of*/, CUdeviceptr from, CUcontext /*of*/,
                                          size_t bytes, CUstream stream) {
  return copy(pointer(to), pointer(from), bytes, stream);
}
PHANTOM_EXPORT CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
  return copy(pointer(to), from, bytes);
}
PHANTOM_EXPORT CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return copy(pointer(to), from, bytes, stream);
}
PHANTOM_EXPORT CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
  return copy(to, pointer(from), bytes);
}
PHANTOM_EXPORT CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy(to, pointer(from), bytes, stream);
}
PHANTOM_EXPORT CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy(pointer(to), pointer(from), bytes);
}
PHANTOM_EXPORT CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy(pointer(to), pointer(from), bytes, stream);
}

PHANTOM_EXPORT CUresult cuMemcpy2D(const CUDA_MEMCPY2D* c) {
  return c == nullptr ? CUDA_ERROR_INVALID_VALUE : copy_2d(*c, nullptr);
}
PHANTOM_EXPORT CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D* c) {
  return c == nullptr ? CUDA_ERROR_INVALID_VALUE : copy_2d(*c, nullptr);
}
PHANTOM_EXPORT CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D* c, CUstream stream) {
  return c == nullptr ? CUDA_ERROR_INVALID_VALUE : copy_2d(*c, stream);
}
PHANTOM_EXPORT CUresult cuMemcpy3D(const CUDA_MEMCPY3D* c) {
  return c == nullptr ? CUDA_ERROR_INVALID_VALUE : copy_3d(*c, nullptr);
}
PHANTOM_EXPORT CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D* c, CUstream stream) {
  return c == nullptr ? CUDA_ERROR_INVALID_VALUE : copy_3d(*c, stream);
}

PHANTOM_EXPORT CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t count) {
  return fill(to, value, 1, count);
}
PHANTOM_EXPORT CUresult cuMemsetD16(CUdeviceptr to, unsigned short value, size_t count) {
  return fill(to, value, 2, count);
}
PHANTOM_EXPORT CUresult cuMemsetD32(CUdeviceptr to, unsigned int value, size_t count) {
  return fill(to, value, 4, count);
}
PHANTOM_EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  return fill(to, value, 1, count, stream);
}
PHANTOM_EXPORT CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  return fill(to, value, 2, count, stream);
}
PHANTOM_EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream) {
  return fill(to, value, 4, count, stream);
}
PHANTOM_EXPORT CUresult cuMemsetD2D8(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height) {
  return fill_rows(to, pitch, value, 1, width, height);
}
PHANTOM_EXPORT CUresult cuMemsetD2D16(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height) {
  return fill_rows(to, pitch, value, 2, width, height);
}
PHANTOM_EXPORT CUresult cuMemsetD2D32(CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height) {
  return fill_rows(to, pitch, value, 4, width, height);
}
PHANTOM_EXPORT CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                                          size_t height, CUstream stream) {
  return fill_rows(to, pitch, value, 1, width, height, stream);
}
PHANTOM_EXPORT CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
                                           size_t height, CUstream stream) {
  return fill_rows(to, pitch, value, 2, width, height, stream);
}
PHANTOM_EXPORT CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned int value, size_t width,
                                           size_t height, CUstream stream) {
  return fill_rows(to, pitch, value, 4, width, height, stream);
}

// Flags between streams and cards: written like small copies; waiting for one is over at once, as all before it is
// done.
PHANTOM_EXPORT CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr to, cuuint32_t value,
                                             unsigned int /*flags*/) {
  return fill(to, value, 4, 1, stream);
}
PHANTOM_EXPORT CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr to, cuuint64_t value,
                                             unsigned int /*flags*/) {
  constexpr unsigned kHalf = 32;
  const CUresult error = fill(to, static_cast<unsigned int>(value), 4, 1, stream);
  return error == CUDA_SUCCESS ? fill(to + 4, static_cast<unsigned int>(value >> kHalf), 4, 1, stream) : error;
}
