// Computes small results of torch's operators on phantom GPUs (docs/values.md). Loaded by vramfit_rehearsal/values.py
// into programs that use torch; made for the version of torch that it is compiled with.
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include <exception>
#include <memory>
#include <vector>

#include "phantom/values/observer_torch.h"

namespace vramfit::values {
namespace {

/// Kept to the end: a handle that goes takes its kernel along.
std::vector<c10::RegistrationHandleRAII>& handles() {
  static auto* const kHandles =
      new std::vector<c10::RegistrationHandleRAII>;  // NOLINT(cppcoreguidelines-owning-memory)
  return *kHandles;
}

/// Factories have a kernel at BackendSelect, which ours stands in for: torch would warn.
class Silent final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

/// BackendSelect is what every operator passes after autograd and before its kernel.
void observe(c10::Dispatcher& dispatcher, const c10::OperatorName& name, OperatorFacts facts) {
  auto kernel = c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Observer>(std::move(facts)));
  handles().push_back(dispatcher.registerImpl(name, c10::DispatchKey::BackendSelect, std::move(kernel), std::nullopt,
                                              nullptr, "vramfit values"));
}

}  // namespace
}  // namespace vramfit::values

/// The number of operators observed from now on, or 0 if the settings say that values are unknown.
VRAMFIT_VALUES std::int32_t vramfit_values_install(vramfit::values::OnRead on_read, vramfit::values::LayerOf layer_of) {
  namespace values = vramfit::values;
  if (values::settings().is_on == 0) return 0;
  values::on_read() = on_read;
  values::layer_of() = layer_of;
  values::Silent silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const std::optional<c10::OperatorHandle> op = dispatcher.findSchema(name);
    if (!op || !values::is_observed(*op)) continue;
    std::optional<values::OperatorFacts> facts = values::facts_of(*op);
    if (facts) values::observe(dispatcher, name, std::move(*facts));
  }
  return static_cast<std::int32_t>(values::handles().size());
}

/// Where a tensor's memory begins, and its bytes; null if it has none of its own. `tensor` is its _cdata in Python,
/// where untyped_storage() would make an object that lives as long as the memory: autograd then no longer takes the
/// memory to be its own, and sums gradients elsewhere.
VRAMFIT_VALUES const void* vramfit_values_memory(const c10::TensorImpl* tensor, std::int64_t* bytes) {
  *bytes = 0;
  if (!tensor->has_storage()) return nullptr;
  try {
    const c10::Storage& storage = tensor->unsafe_storage();
    *bytes = static_cast<std::int64_t>(storage.nbytes());
    return storage.data();
  } catch (const std::exception&) {  // of tensors without numbers, such as fake ones
    return nullptr;
  }
}
