#include "program/make_program.h"

#include "program/runtimes/runtimes.h"

namespace vramfit::program {

Program make_program(const LowerInputs& inputs) { return runtime_row(inputs.job.runtime).make_program(inputs); }

}  // namespace vramfit::program
