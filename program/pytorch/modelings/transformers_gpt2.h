// GPT-2 as transformers 5.23 writes it (models/gpt2/modeling_gpt2.py), on counted tensors.
#pragma once

#include <functional>
#include <vector>

#include "program/pytorch/modelings/gpt2_graph.h"
#include "program/pytorch/modelings/modeling.h"
#include "program/pytorch/modelings/peft_adapters.h"

namespace vramfit::eager {

class Gpt2 final : public Model {
 public:
  /// Throws NotModelled for a graph of another form.
  Gpt2(const Graph& graph, const Job& job, Torch& torch);

  std::vector<Module> modules() const override;
  std::size_t blocks() const override { return gpt2_.blocks.size(); }
  void load() override {}
  Tensor embed(const Tensor& ids) override;
  /// Positions, which are added, the mask, and dropout.
  Tensor prepare(Tensor embedded, const Tensor& mask, const Tensor& items) override;
  CheckpointBody block(std::size_t number) override;
  Tensor head(Tensor h, const std::function<Tensor(Tensor)>& before_output) override;
  OutputLayer output_layer() const override {
    return {.weights = gpt2_.output, .inputs = gpt2_.sizes.hidden, .outputs = gpt2_.sizes.vocabulary};
  }
  /// The Trainer knows classes by the end of their names, which isn't ForCausalLM.
  bool has_known_loss() const override { return false; }
  void use_adapters(bool are_used) override { adapters_.use(are_used); }
  void leave() override { hidden_ = {}; }

 private:
  /// What a block is passed beside its input.
  struct Passed {
    Tensor position_ids, items, mask;
  };
  /// What attention gives, and the probabilities that are returned with it; those empty where a kernel computes both.
  struct Attended {
    Tensor out, probabilities;
  };

  void require_code(const Job& job) const;
  Tensor run(const Gpt2Block& l, const Tensor& x, const Passed& passed);
  Attended attention(const Gpt2Block& l, const Tensor& x, const Tensor& mask);
  Attended attended_eagerly(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask);
  Tensor probabilities(Tensor scores, Dtype dtype);
  Tensor feed_forward(const Gpt2Block& l, const Tensor& x);
  Tensor conv1d(const Tensor& x, const LinearParameters& by, std::int64_t inputs, std::int64_t outputs);
  Tensor norm(const Tensor& x, const NormParameters& by);
  Tensor dropped(const Tensor& x, double rate);

  Torch& torch_;
  Adapters adapters_;
  Gpt2Graph gpt2_;
  bool is_scored_;                // the loss takes hidden states, not logits (TRL)
  bool is_eager_, may_be_cudnn_;  // attention
  Dtype hidden_dtype_;            // of parameters, or what they are gathered in
  Passed passed_;
  Tensor embedded_, positions_, hidden_;  // locals of GPT2Model.forward and GPT2LMHeadModel.forward
};

}  // namespace vramfit::eager
