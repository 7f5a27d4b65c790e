// The graph interface: PyTorch's convolutions and cuDNN attention come this way, by cudnn-frontend. Whether a real
// cuDNN would have an engine for a graph is not asked: each graph gets one.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "phantom/core/contents.h"
#include "phantom/core/visibility.h"
#include "phantom/cudnn/descriptors.h"
#include "phantom/generate/generated.h"

namespace {

using vramfit::phantom::cudnn::Attribute;
using vramfit::phantom::cudnn::computed;
using vramfit::phantom::cudnn::Descriptor;
using vramfit::phantom::cudnn::element_bytes;

struct Registry {
  std::mutex mutex;
  std::unordered_map<const void*, std::shared_ptr<Descriptor>> alive;
};

// Never destroyed: programs give descriptors back while the process ends.
Registry& registry() {
  static auto* all = new Registry;
  return *all;
}

std::shared_ptr<Descriptor> find(const void* handle) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().alive.find(handle);
  return found == registry().alive.end() ? nullptr : found->second;
}

// Elements that the caller gave room for; the rest are only counted.
void answer_values(const Attribute& attribute, int64_t room, int64_t* given, void* elements) {
  const std::size_t each = element_bytes(attribute.type);
  if (given != nullptr) *given = static_cast<int64_t>(attribute.elements.size() / each);
  if (elements == nullptr || room <= 0) return;
  const std::size_t bytes = std::min(attribute.elements.size(), static_cast<std::size_t>(room) * each);
  std::memcpy(elements, attribute.elements.data(), bytes);
}

// Descriptors that the caller made are filled in.
cudnnStatus_t answer_descriptors(const Attribute& attribute, int64_t room, int64_t* given, void* elements) {
  if (given != nullptr) *given = static_cast<int64_t>(attribute.descriptors.size());
  if (elements == nullptr) return CUDNN_STATUS_SUCCESS;
  auto* const targets = static_cast<cudnnBackendDescriptor_t*>(elements);
  const std::size_t count = std::min(attribute.descriptors.size(), static_cast<std::size_t>(room));
  for (std::size_t i = 0; i < count; ++i) {
    const auto target = find(targets[i]);
    if (target == nullptr) return CUDNN_STATUS_BAD_PARAM;
    *target = *attribute.descriptors[i];
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t answer(const Attribute& attribute, cudnnBackendAttributeType_t type, int64_t room, int64_t* given,
                     void* elements) {
  if (attribute.type != type) return CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) return answer_descriptors(attribute, room, given, elements);
  answer_values(attribute, room, given, elements);
  return CUDNN_STATUS_SUCCESS;
}

// Copies, as callers change and destroy theirs.
cudnnStatus_t read_descriptors(Attribute& attribute, int64_t count, const void* elements) {
  const auto* handles = static_cast<const cudnnBackendDescriptor_t*>(elements);
  for (int64_t i = 0; i < count; ++i) {
    const auto given = find(handles[i]);
    if (given == nullptr) return CUDNN_STATUS_BAD_PARAM;
    attribute.descriptors.push_back(std::make_shared<Descriptor>(*given));
  }
  return CUDNN_STATUS_SUCCESS;
}

void touch_pointers(const Descriptor& pack, int name) {
  const Attribute* attribute = pack.find(name);
  if (attribute == nullptr || attribute->type != CUDNN_TYPE_VOID_PTR) return;
  std::vector<const void*> pointers(attribute->elements.size() / sizeof(void*));
  std::memcpy(pointers.data(), attribute->elements.data(), pointers.size() * sizeof(void*));
  vramfit::phantom::touched(pointers);
}

}  // namespace

PHANTOM_EXPORT cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                                          cudnnBackendDescriptor_t* descriptor) {
  if (descriptor == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  auto made = std::make_shared<Descriptor>();
  made->type = type;
  *descriptor = made.get();
  const std::lock_guard lock(registry().mutex);
  registry().alive[made.get()] = std::move(made);
  return CUDNN_STATUS_SUCCESS;
}

PHANTOM_EXPORT cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  const std::lock_guard lock(registry().mutex);
  registry().alive.erase(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

PHANTOM_EXPORT cudnnStatus_t cudnnBackendInitialize(cudnnBackendDescriptor_t handle) {
  const auto descriptor = find(handle);
  if (descriptor == nullptr) return CUDNN_STATUS_BAD_PARAM;
  descriptor->attributes.clear();
  descriptor->finalized = false;
  return CUDNN_STATUS_SUCCESS;
}

PHANTOM_EXPORT cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t handle) {
  const auto descriptor = find(handle);
  if (descriptor == nullptr) return CUDNN_STATUS_BAD_PARAM;
  descriptor->finalized = true;
  return CUDNN_STATUS_SUCCESS;
}

PHANTOM_EXPORT cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t handle, cudnnBackendAttributeName_t name,
                                                      cudnnBackendAttributeType_t type, int64_t count,
                                                      const void* elements) {
  const auto descriptor = find(handle);
  if (descriptor == nullptr || count < 0 || (count > 0 && elements == nullptr)) return CUDNN_STATUS_BAD_PARAM;
  Attribute attribute{.type = type, .elements = {}, .descriptors = {}};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const cudnnStatus_t status = read_descriptors(attribute, count, elements);
    if (status != CUDNN_STATUS_SUCCESS) return status;
  } else if (count > 0) {
    const auto* from = static_cast<const std::byte*>(elements);
    attribute.elements.assign(from, from + static_cast<std::size_t>(count) * element_bytes(type));
  }
  descriptor->attributes[name] = std::move(attribute);
  return CUDNN_STATUS_SUCCESS;
}

PHANTOM_EXPORT cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const handle,
                                                      cudnnBackendAttributeName_t name,
                                                      cudnnBackendAttributeType_t type, int64_t room, int64_t* given,
                                                      void* elements) {
  const auto descriptor = find(handle);
  if (descriptor == nullptr || room < 0) return CUDNN_STATUS_BAD_PARAM;
  if (const Attribute* attribute = descriptor->find(name)) return answer(*attribute, type, room, given, elements);
  if (const auto attribute = computed(*descriptor, name)) return answer(*attribute, type, room, given, elements);
  if (given != nullptr) *given = 0;  // notes, knobs, layouts: there are none
  return CUDNN_STATUS_SUCCESS;
}

PHANTOM_EXPORT cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                                 cudnnBackendDescriptor_t variant_pack) {
  const auto pack = find(variant_pack);
  if (find(plan) == nullptr || pack == nullptr) return CUDNN_STATUS_BAD_PARAM;
  vramfit::phantom::generated::computing(handle);
  touch_pointers(*pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  touch_pointers(*pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  return CUDNN_STATUS_SUCCESS;
}
