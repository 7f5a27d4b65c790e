#include "model_specs/parameters.h"

#include "base/error.h"
#include "model_specs/families/families.h"

namespace vramfit {

std::vector<NamedShape> parameters(const ModelSpec& spec) {
  return spec.tensors.empty() ? find_family(spec.model_type).parameters(spec) : spec.tensors;
}

std::int64_t parameter_count(const ModelSpec& spec) {
  try {
    std::int64_t total = 0;
    for (const NamedShape& tensor : parameters(spec)) {
      std::int64_t elements = 1;
      for (const std::int64_t dim : tensor.shape) elements = checked_mul(elements, dim);
      total = checked_add(total, elements);
    }
    // The largest training state takes sixteen bytes per element; the product must fit in 64 bits.
    checked_mul(total, 16);
    return total;
  } catch (const InputError&) {
    throw ModelError(spec.source + ": the number of parameters overflows 64 bits; its sizes can't be right");
  }
}

std::vector<NamedBuffer> buffers(const ModelSpec& spec) {
  if (!spec.tensors.empty()) return {};
  const Family& family = find_family(spec.model_type);
  return family.buffers == nullptr ? std::vector<NamedBuffer>{} : family.buffers(spec);
}

ModelSpec without_head(const ModelSpec& spec) {
  ModelSpec base = spec;
  base.architecture = std::string(find_family(spec.model_type).classes[1]);
  return base;
}

}  // namespace vramfit
