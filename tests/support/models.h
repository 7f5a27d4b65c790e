// Small and real models for tests of the estimator, read from configuration texts.
#pragma once

#include "model_specs/spec.h"

namespace vramfit::testing {

/// Two layers, hidden size 64, a vocabulary of 512.
ModelSpec small_llama();

/// The sizes of Llama 3.1 8B: 8030261248 parameters.
ModelSpec llama_8b();

}  // namespace vramfit::testing
