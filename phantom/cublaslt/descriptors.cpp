// What a descriptor is told, it answers. Defaults are those that cublasLt.h states beside each attribute.
#include "phantom/core/visibility.h"
#include "phantom/cublaslt/attributes.h"

namespace {

using vramfit::phantom::cublaslt::forget_descriptor;
using vramfit::phantom::cublaslt::get_attribute;
using vramfit::phantom::cublaslt::new_descriptor;
using vramfit::phantom::cublaslt::set_attribute;

template <class Descriptor>
cublasStatus_t begin(Descriptor* descriptor, std::size_t bytes) {
  if (descriptor == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (bytes < sizeof *descriptor) return CUBLAS_STATUS_ALLOC_FAILED;
  *descriptor = {};
  descriptor->data[0] = new_descriptor();
  return CUBLAS_STATUS_SUCCESS;
}

template <class Descriptor>
cublasStatus_t create(Descriptor** descriptor) {
  if (descriptor == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *descriptor = new Descriptor{};
  return begin(*descriptor, sizeof **descriptor);
}

template <class Descriptor>
cublasStatus_t destroy(Descriptor* descriptor) {
  if (descriptor != nullptr) forget_descriptor(descriptor->data[0]);
  delete descriptor;
  return CUBLAS_STATUS_SUCCESS;
}

template <class Descriptor>
cublasStatus_t set(Descriptor* descriptor, int attribute, const void* buffer, std::size_t bytes) {
  if (descriptor == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  return set_attribute(descriptor->data[0], attribute, buffer, bytes);
}

template <class Descriptor>
cublasStatus_t get(Descriptor* descriptor, int attribute, void* buffer, std::size_t bytes, std::size_t* written,
                   std::uint64_t fallback) {
  if (descriptor == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  return get_attribute(descriptor->data[0], attribute, buffer, bytes, written, fallback);
}

template <class Descriptor, class Value>
void put(Descriptor* descriptor, int attribute, Value value) {
  set_attribute(descriptor->data[0], attribute, &value, sizeof value);
}

constexpr std::uint64_t kAll = ~std::uint64_t{0};

}  // namespace

PHANTOM_EXPORT cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t bytes,
                                                                cudaDataType type, uint64_t rows, uint64_t columns,
                                                                int64_t leading) {
  const cublasStatus_t status = begin(layout, bytes);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  put(layout, CUBLASLT_MATRIX_LAYOUT_TYPE, static_cast<std::uint32_t>(type));
  put(layout, CUBLASLT_MATRIX_LAYOUT_ORDER, static_cast<std::int32_t>(CUBLASLT_ORDER_COL));
  put(layout, CUBLASLT_MATRIX_LAYOUT_ROWS, rows);
  put(layout, CUBLASLT_MATRIX_LAYOUT_COLS, columns);
  put(layout, CUBLASLT_MATRIX_LAYOUT_LD, leading);
  put(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, std::int32_t{1});
  return CUBLAS_STATUS_SUCCESS;
}

PHANTOM_EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                                         uint64_t rows, uint64_t columns, int64_t leading) {
  const cublasStatus_t status = create(layout);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  return cublasLtMatrixLayoutInit_internal(*layout, sizeof **layout, type, rows, columns, leading);
}

PHANTOM_EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }

PHANTOM_EXPORT cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                               cublasLtMatrixLayoutAttribute_t attribute,
                                                               const void* buffer, size_t bytes) {
  return set(layout, attribute, buffer, bytes);
}

PHANTOM_EXPORT cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t layout,
                                                               cublasLtMatrixLayoutAttribute_t attribute, void* buffer,
                                                               size_t bytes, size_t* written) {
  return get(layout, attribute, buffer, bytes, written, 0);
}

PHANTOM_EXPORT cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t matmul, size_t bytes,
                                                              cublasComputeType_t compute, cudaDataType_t scale) {
  const cublasStatus_t status = begin(matmul, bytes);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  put(matmul, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, static_cast<std::int32_t>(compute));
  put(matmul, CUBLASLT_MATMUL_DESC_SCALE_TYPE, static_cast<std::int32_t>(scale));
  return CUBLAS_STATUS_SUCCESS;
}

PHANTOM_EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* matmul, cublasComputeType_t compute,
                                                       cudaDataType_t scale) {
  const cublasStatus_t status = create(matmul);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  return cublasLtMatmulDescInit_internal(*matmul, sizeof **matmul, compute, scale);
}

PHANTOM_EXPORT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmul) { return destroy(matmul); }

PHANTOM_EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmul,
                                                             cublasLtMatmulDescAttributes_t attribute,
                                                             const void* buffer, size_t bytes) {
  return set(matmul, attribute, buffer, bytes);
}

PHANTOM_EXPORT cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t matmul,
                                                             cublasLtMatmulDescAttributes_t attribute, void* buffer,
                                                             size_t bytes, size_t* written) {
  switch (static_cast<int>(attribute)) {
    case CUBLASLT_MATMUL_DESC_FILL_MODE:
      return get(matmul, attribute, buffer, bytes, written, CUBLAS_FILL_MODE_FULL);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return get(matmul, attribute, buffer, bytes, written, CUBLASLT_EPILOGUE_DEFAULT);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return get(matmul, attribute, buffer, bytes, written, kAll);
    default:
      return get(matmul, attribute, buffer, bytes, written, 0);
  }
}

PHANTOM_EXPORT cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference,
                                                                    size_t bytes) {
  return begin(preference, bytes);
}

PHANTOM_EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  const cublasStatus_t status = create(preference);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  return cublasLtMatmulPreferenceInit_internal(*preference, sizeof **preference);
}

PHANTOM_EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy(preference);
}

PHANTOM_EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                                   cublasLtMatmulPreferenceAttributes_t attribute,
                                                                   const void* buffer, size_t bytes) {
  return set(preference, attribute, buffer, bytes);
}

PHANTOM_EXPORT cublasStatus_t cublasLtMatmulPreferenceGetAttribute(cublasLtMatmulPreference_t preference,
                                                                   cublasLtMatmulPreferenceAttributes_t attribute,
                                                                   void* buffer, size_t bytes, size_t* written) {
  switch (static_cast<int>(attribute)) {
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return get(preference, attribute, buffer, bytes, written, 256);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return get(preference, attribute, buffer, bytes, written, CUBLASLT_REDUCTION_SCHEME_MASK);
    case CUBLASLT_MATMUL_PREF_IMPL_MASK:
      return get(preference, attribute, buffer, bytes, written, kAll);
    default:
      return get(preference, attribute, buffer, bytes, written, 0);
  }
}

PHANTOM_EXPORT cublasStatus_t cublasLtMatrixTransformDescInit_internal(cublasLtMatrixTransformDesc_t transform,
                                                                       size_t bytes, cudaDataType scale) {
  const cublasStatus_t status = begin(transform, bytes);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  put(transform, CUBLASLT_MATRIX_TRANSFORM_DESC_SCALE_TYPE, static_cast<std::int32_t>(scale));
  return CUBLAS_STATUS_SUCCESS;
}

PHANTOM_EXPORT cublasStatus_t cublasLtMatrixTransformDescCreate(cublasLtMatrixTransformDesc_t* transform,
                                                                cudaDataType scale) {
  const cublasStatus_t status = create(transform);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  return cublasLtMatrixTransformDescInit_internal(*transform, sizeof **transform, scale);
}

PHANTOM_EXPORT cublasStatus_t cublasLtMatrixTransformDescDestroy(cublasLtMatrixTransformDesc_t transform) {
  return destroy(transform);
}

PHANTOM_EXPORT cublasStatus_t cublasLtMatrixTransformDescSetAttribute(cublasLtMatrixTransformDesc_t transform,
                                                                      cublasLtMatrixTransformDescAttributes_t attribute,
                                                                      const void* buffer, size_t bytes) {
  return set(transform, attribute, buffer, bytes);
}

PHANTOM_EXPORT cublasStatus_t cublasLtMatrixTransformDescGetAttribute(cublasLtMatrixTransformDesc_t transform,
                                                                      cublasLtMatrixTransformDescAttributes_t attribute,
                                                                      void* buffer, size_t bytes, size_t* written) {
  return get(transform, attribute, buffer, bytes, written, 0);
}
