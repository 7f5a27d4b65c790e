#include "program/make_program.h"

#include <stdexcept>

#include "program/pytorch/record.h"

namespace vramfit::program {

Program make_program(const LowerInputs& inputs) {
  switch (inputs.job.runtime) {
    case Runtime::vramfit:
      return lower(inputs);
    case Runtime::pytorch_fsdp2:
      return eager::record(inputs.graph, inputs.job, inputs.device, inputs.clip);
  }
  throw std::logic_error("a runtime without programs");
}

}  // namespace vramfit::program
