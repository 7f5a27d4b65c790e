// What Hugging Face accelerate 1.15.0 reports for a model: its command line's `estimate-memory` table and the table of
// its Hub Space. Both count AutoModel's class, which has no head, in fp32 with buffers, and nothing of a training job.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/text/units.h"
#include "model_specs/spec.h"

namespace vramfit {

/// accelerate's calculate_maximum_sizes. A layer is a module that is never split across devices (transformers'
/// _no_split_modules: the numbered blocks) or one without children.
struct AccelerateSizes {
  Bytes total, largest_layer;
};

/// Throws ModelError when the sizes overflow.
AccelerateSizes accelerate_sizes(const ModelSpec& spec);

/// A row of `accelerate estimate-memory`, one each for float32, float16, int8 and int4.
struct AccelerateMemoryRow {
  std::string dtype, largest_layer, total_size, training;  // training: "N/A" for int8 and int4
};
std::vector<AccelerateMemoryRow> accelerate_memory_rows(const AccelerateSizes& sizes);

/// A row of the Space's "training using Adam" table, one each for float32 and float16 (mixed precision).
struct AccelerateTrainingRow {
  std::string dtype, model, gradients, backward, step;
};
std::vector<AccelerateTrainingRow> accelerate_training_rows(const AccelerateSizes& sizes);

/// accelerate's convert_bytes: at most two decimals, powers of 1024 written as KB, MB, GB.
std::string accelerate_bytes(double bytes);

/// Both tables, drawn as accelerate draws its own; `model` is the name in the first one's title.
std::string accelerate_text(const ModelSpec& spec, std::string_view model);

}  // namespace vramfit
