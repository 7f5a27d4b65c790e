// Linears as torchao converts them: Float8Linear with tensorwise scales that are made anew in every step.
#pragma once

#include "program/program.h"

namespace vramfit::eager {

struct Fp8Casting {
  bool is_compiled = false;
  bool keeps_maxima = false;  // for recomputation in backward, as torchtitan's selective checkpointing does
};

/// Changes the work of the products of layers: their factors are cast to FP8 first.
void use_fp8_products(program::Program& program, const Fp8Casting& casting);

}  // namespace vramfit::eager
