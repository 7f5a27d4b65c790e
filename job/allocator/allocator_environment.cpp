#include "job/allocator/allocator_environment.h"

#include "base/error.h"
#include "job/allocator/allocator_settings.h"

namespace vramfit {

bool asks_for_allocator(std::string_view variable, std::string_view allocator) {
  if (variable.empty()) return true;
  try {
    return parse_allocator_settings(variable) == allocator_settings(allocator);
  } catch (const InputError&) {
    return false;
  }
}

}  // namespace vramfit
