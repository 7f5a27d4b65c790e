// Where a run's initial weights come from: random, created sharded, or safetensors read shard by shard.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model_specs/graph.h"
#include "program/files/peft_folder.h"
#include "program/stages/trainable.h"

namespace at {
class Tensor;
}

namespace vramfit {

/// Fills rows [first_row, first_row + rows) of a parameter into `into` (1-D, rows * row elements, any float dtype).
struct WeightSource {
  virtual ~WeightSource() = default;
  virtual void read_rows(const Parameter& parameter, std::int64_t first_row, std::int64_t rows, at::Tensor& into) = 0;
  /// Whether it says nothing of the parameter, which begins as something made of others (Parameter::Init::norms).
  virtual bool lacks(const Parameter& /*parameter*/) const { return false; }
  virtual std::string description() const = 0;  // "random (seed 0)", or the files
};

/// Elements of one row (dims 1 and up) of a parameter.
std::int64_t row_element_count(const Parameter& parameter);

/// Normal(0, 0.02), uniform, ones or zeros as Parameter::init says; every element depends on (seed, name, index) only,
/// so any mesh sees the same weights.
std::unique_ptr<WeightSource> random_weights(std::uint64_t seed);

/// A .safetensors file, an index.json, or a directory holding either. Only the rows asked for are read: into the
/// tensor's own memory where the types agree, else through a buffer of 1 MiB. Nothing is mapped, so a file that becomes
/// shorter meanwhile is an error and no signal.
/// Adapters that the file lacks are those of `initial`. Throws ModelError for any other missing tensor, a wrong shape
/// or a malformed file.
std::unique_ptr<WeightSource> safetensors_weights(const std::string& path, const Graph& graph,
                                                  std::unique_ptr<WeightSource> initial = nullptr);

/// PEFT's folder of adapters over the base's weights, which hold everything else. Throws ModelError for an adapter of
/// the graph that the folder lacks, one of the folder that the graph lacks, and a wrong shape.
std::unique_ptr<WeightSource> peft_weights(const PeftFolder& folder, const Graph& graph,
                                           std::unique_ptr<WeightSource> base);

/// How a run holds matrices, and computes with those that are codes.
struct HeldMatrices {
  std::vector<HeldParameter> parameters;
  Dtype compute = Dtype::f32;
  std::int64_t shards = 1;  // ranks that share the rows of each
};

/// The same source, and magnitudes of DoRA that it lacks: norms of the rows of their matrices, rounded as these are
/// held; of codes, as they are made whole.
std::unique_ptr<WeightSource> with_magnitudes(std::unique_ptr<WeightSource> source, const Graph& graph,
                                              HeldMatrices held);

/// The source for a rank that rank 0 sends its rows to; reading from it is a bug in the program.
std::unique_ptr<WeightSource> sent_weights();

/// The same source with nothing read and nothing written: what a phantom GPU is given, on which weights would have no
/// values anyway.
std::unique_ptr<WeightSource> without_values(std::unique_ptr<WeightSource> source);

}  // namespace vramfit
