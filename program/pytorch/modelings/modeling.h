// A model's code as a library writes it, on counted tensors: its locals live as long as they do in Python.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "job/job.h"
#include "model_specs/graph.h"
#include "program/pytorch/calls/flash_attn.h"
#include "program/pytorch/calls/torch.h"
#include "program/pytorch/wrappers/wrapper.h"

namespace vramfit::eager {

/// What a loop computes the loss with: the library's own calls on logits, or Liger's on these or on hidden states.
enum class LossKernel { library, liger, liger_fused };

class Model {
 public:
  Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  Model(Model&&) = delete;
  Model& operator=(Model&&) = delete;
  virtual ~Model() = default;

  /// The embedding, the blocks, and norm and output as one, in the order in which the model holds and runs them.
  virtual std::vector<Module> modules() const = 0;
  virtual std::size_t blocks() const = 0;

  /// What it has beside parameters.
  virtual void load() = 0;
  /// Its buffers of another type in that one, from then on.
  virtual void convert_buffers(Dtype /*dtype*/) {}
  virtual Tensor embed(const Tensor& ids) = 0;
  /// What the model's own forward makes of the embedding's output before the blocks; `mask` is the attention mask that
  /// the loop passes, or empty, or of packed documents their positions, and `items` what it passes beside, which all
  /// blocks are passed on.
  virtual Tensor prepare(Tensor embedded, const Tensor& /*mask*/, const Tensor& /*items*/) { return embedded; }
  /// Which documents lie in the row that it is given next.
  virtual void set_documents(const PackedDocuments& /*documents*/) {}
  /// The code of a block, with what it is passed beside its input: a checkpoint keeps both until backward.
  virtual CheckpointBody block(std::size_t number) = 0;
  /// A block as hooks see it, which are around its checkpoint. Only where modules have hooks.
  virtual Submodule layer(std::size_t /*number*/) const { return {}; }
  /// Takes ownership of `h`: Python code reuses its variable for the normed tensor.
  /// `before_output` is called with the normed tensor, and gives what the output layer works on.
  virtual Tensor head(Tensor h, const std::function<Tensor(Tensor)>& before_output) = 0;
  /// Between the output layer and the loss.
  virtual Tensor finish(Tensor logits) { return logits; }
  /// The weights of the output layer, for a loss that multiplies with them itself: head() then ends with its input.
  struct OutputLayer {
    int weights = -1;
    std::int64_t inputs = 0, outputs = 0;
  };
  virtual OutputLayer output_layer() const { return {}; }
  /// Whether the Trainer takes its loss for one that shifts labels, and so doesn't count the first of each row.
  virtual bool has_known_loss() const { return true; }
  /// Whether its loss is the mean over labels, each of its own token's logits as they are, and so neither shifts labels
  /// nor divides by how many the Trainer counted.
  virtual bool has_loss_of_its_own() const { return false; }
  /// Of a fused loss, head() ends with what the output layer works on.
  virtual LossKernel loss_kernel() const { return LossKernel::library; }
  /// From here on: whether PEFT's adapters change anything.
  virtual void use_adapters(bool /*are_used*/) {}
  /// What its forward holds until it returns, after a loss that it computes itself.
  virtual void leave() {}
};

/// Of hidden states, where no autocast is: as the parameter `embedding` is held, or what FSDP gathers in.
Dtype hidden_dtype(const Graph& graph, const Job& job, int embedding);

/// What a model has beside parameters, all in one dtype.
struct ModelBuffers {
  Dtype dtype = Dtype::f32;
  std::vector<std::int64_t> elements;  // of each
};
/// Of the model that the job names.
ModelBuffers buffers_of(const Graph& graph, const Job& job);

/// The modeling that the job names. Throws NotModelled for a graph that it has no code for.
std::unique_ptr<Model> make_model(const Graph& graph, const Job& job, Torch& torch);

}  // namespace vramfit::eager
