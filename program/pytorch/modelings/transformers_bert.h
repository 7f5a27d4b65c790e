// BERT with its masked-language-model head (BertForMaskedLM) as transformers 5.23 writes it
// (models/bert/modeling_bert.py), on counted tensors.
#pragma once

#include <functional>
#include <vector>

#include "program/pytorch/modelings/bert_graph.h"
#include "program/pytorch/modelings/modeling.h"
#include "program/pytorch/modelings/peft_adapters.h"

namespace vramfit::eager {

class Bert final : public Model {
 public:
  /// Throws NotModelled for a graph of another form.
  Bert(const Graph& graph, const Job& job, Torch& torch);

  std::vector<Module> modules() const override;
  std::size_t blocks() const override { return bert_.blocks.size(); }
  /// The numbers of positions, and types that are all 0.
  void load() override;
  Tensor embed(const Tensor& ids) override;
  /// Types and positions, which are added, norm and dropout; what the mask is looked at with.
  Tensor prepare(Tensor embedded, const Tensor& mask, const Tensor& items) override;
  CheckpointBody block(std::size_t number) override;
  Tensor head(Tensor h, const std::function<Tensor(Tensor)>& before_output) override;
  /// CrossEntropyLoss of each label with its own token's logits: a mean, whatever the Trainer counted.
  bool has_loss_of_its_own() const override { return true; }
  bool has_known_loss() const override { return false; }
  void leave() override { hidden_ = {}; }

 private:
  /// What attention gives, and the probabilities that are returned with it; those empty where a kernel computes both.
  struct Attended {
    Tensor out, probabilities;
  };

  void require_code(const Job& job) const;
  Tensor run(const BertBlock& l, const Tensor& x);
  Attended attention(const BertBlock& l, const Tensor& x);
  Attended attended_eagerly(const Tensor& q, const Tensor& k, const Tensor& v);
  /// BertSelfOutput and BertOutput.
  Tensor added_to(const Tensor& residual, const Tensor& x, const LinearParameters& by, const NormParameters& normed_by);
  Tensor linear(const Tensor& x, const LinearParameters& by, std::int64_t inputs, std::int64_t outputs);
  Tensor norm(const Tensor& x, const NormParameters& by);
  Tensor activated_linear(const Tensor& x, const LinearParameters& by, std::int64_t outputs);
  Tensor dropped(const Tensor& x, double rate);

  Torch& torch_;
  Adapters adapters_;
  BertGraph bert_;
  bool is_eager_, may_be_cudnn_;  // attention
  Dtype hidden_dtype_;            // of parameters, or what they are gathered in
  Tensor position_ids_, type_ids_;
  Tensor types_, items_;
  Tensor embedded_, hidden_;  // locals of BertModel.forward and BertForMaskedLM.forward
};

/// Elements of what transformers' BERT has beside parameters, in int64.
std::vector<std::int64_t> bert_buffers(const Graph& graph, const Job& job);

}  // namespace vramfit::eager
