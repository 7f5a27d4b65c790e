#include "executor/training/program_to_train.h"

#include <optional>
#include <stdexcept>
#include <string>

#include "program/readers/check.h"

namespace vramfit {

program::Program program_to_train(const program::LowerInputs& inputs) {
  program::Program lowered = program::lower(inputs);
  if (const std::optional<std::string> fault = program::fault_of(lowered)) {
    throw std::logic_error("the step's program has a fault: " + *fault);
  }
  return lowered;
}

}  // namespace vramfit
