#include "program/stages/kept_values.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "job/fields/job_fields.h"
#include "program/stages/tape.h"
#include "tests/support/config_file.h"
#include "tests/support/models.h"

namespace vramfit {

namespace {

const Device kHopper{.kind = DeviceKind::cuda, .name = "H100", .compute_capability = 90, .sm_count = 132};

/// The second layer of a model, as its tape sees it.
struct Block {
  explicit Block(const ModelSpec& spec) : graph(build_graph(spec, {})) {
    const auto tapes = make_shared_tapes({.graph = graph,
                                          .precision = precision,
                                          .device = kHopper,
                                          .shape = shape,
                                          .trainable = std::vector<bool>(graph.parameters.size(), true)});
    segment = &graph.segments.at(2);
    rules = tapes.at(2)->rules;
    saved.assign(segment->values.size(), false);
    for (std::size_t i = 0; i < rules.size(); ++i) {
      for (const Ref& ref : rules[i].saved) {
        const Op& op = segment->ops[i];
        const auto& values = ref.of == Ref::Of::input ? op.inputs : op.outputs;
        saved[at(values[at(ref.index)])] = true;
      }
    }
  }

  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  BlockOps ops() const { return {*segment, rules, saved, precision, shape}; }

  Recomputation of(const std::string& checkpointing) const {
    Job job;
    set_job_field(job, job_field_named("checkpointing"), checkpointing, "--checkpointing");
    return recompute_but(ops(), kept_policies(job.checkpointing)).at(policy_number(job.checkpointing));
  }

  /// Names of the ops that run again, and of the values that are kept, with spaces between.
  std::string run(const Recomputation& recomputation) const {
    std::string names;
    for (std::size_t i = 0; i < recomputation.runs.size(); ++i) {
      if (recomputation.runs[i]) names += " " + segment->ops[i].name;
    }
    return names;
  }

  std::string kept(const Recomputation& recomputation) const {
    std::string names;
    for (std::size_t v = 1; v < recomputation.kept.size(); ++v) {
      if (recomputation.kept[v]) names += " " + segment->values[v].name;
    }
    return names;
  }

  /// But the input, which every policy keeps where it is read, and the output, which is the next block's.
  Bytes bytes(std::vector<bool> values) const {
    values[0] = values[at(segment->output)] = false;
    Bytes sum;
    for (std::size_t v = 0; v < values.size(); ++v) {
      const Value& value = segment->values[v];
      if (values[v]) sum += element_count(value, shape) * dtype_bytes(value_dtype(value, precision));
    }
    return sum;
  }

  double work(const Recomputation& recomputation) const {
    double sum = 0;
    for (std::size_t i = 0; i < rules.size(); ++i) {
      for (const Work& work : rules[i].work.forward) {
        if (recomputation.runs[i]) sum += std::max(work.flops, kFlopsWhileByteMoves * work.bytes);
      }
    }
    return sum;
  }

  Graph graph;
  Precision precision = precision_named("bf16-mixed");
  BatchShape shape{1, 256};
  const Segment* segment = nullptr;
  std::vector<Rule> rules;
  std::vector<bool> saved;
};

/// Whether backward finds all that it reads: kept, or made again from what is there.
bool makes_all_that_is_saved(const Block& block, const Recomputation& recomputation) {
  std::vector<bool> there = recomputation.kept;
  for (std::size_t i = 0; i < recomputation.runs.size(); ++i) {
    if (!recomputation.runs[i]) continue;
    const Op& op = block.segment->ops[i];
    for (const int input : op.inputs) {
      if (!there[Block::at(input)]) return false;
    }
    if (const int taken = block.rules[i].in_place_input; taken >= 0)
      there[Block::at(op.inputs[Block::at(taken)])] = false;
    for (const int output : op.outputs) there[Block::at(output)] = true;
  }
  for (std::size_t v = 0; v < there.size(); ++v) {
    const bool is_others = static_cast<int>(v) == block.segment->output;
    if (block.saved[v] && !there[v] && !is_others) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("policies that a search chooses from have a number, any other has the next one") {
  const std::vector<KeptPolicy> searched = kept_policies(NoCheckpointing{});
  for (std::size_t number = 0; number < searched.size(); ++number) {
    const Checkpointing same = std::visit([](const auto& policy) { return Checkpointing(policy); }, searched[number]);
    CHECK(policy_number(same) == number);
    CHECK_FALSE(has_own_policy(same));
    CHECK(kept_policies(same).size() == searched.size());
  }
  for (const Checkpointing& own : {Checkpointing(BudgetCheckpointing{.percent = 33}),
                                   Checkpointing(SelectiveCheckpointing{.kept = {{.kind = "linear"}}})}) {
    CHECK(policy_number(own) == searched.size());
    CHECK(has_own_policy(own));
    CHECK(kept_policies(own).size() == searched.size() + 1);
  }
  CHECK_FALSE(has_own_policy(FullCheckpointing{}));
}

TEST_CASE("selective keeps attention and every second product, as what later ops make of them in place") {
  const Block block(testing::llama_8b());
  const Recomputation made = block.of("selective");
  CHECK(block.kept(made) ==
        " self_attn.v_proj self_attn.rope_q self_attn.attention self_attn.attention.lse mlp.gate_proj");
  CHECK(block.run(made) ==
        " input_layernorm self_attn.k_proj self_attn.rope_k self_attn.o_proj residual_1 post_attention_layernorm "
        "mlp.up_proj mlp.glu");
}

TEST_CASE("named kinds are kept, each from its first on, and what nobody reads isn't") {
  const Block block(testing::llama_8b());
  CHECK(block.kept(block.of("selective:attention")) == " self_attn.attention self_attn.attention.lse");
  // The fourth product is followed by an addition in place; the seventh makes the block's output.
  CHECK(block.kept(block.of("selective:linear/3")) == " self_attn.rope_q residual_1");
  CHECK(block.kept(block.of("selective:softcap")).empty());
  CHECK(block.run(block.of("selective:softcap")) == block.run(recompute_all(block.ops())));
}

TEST_CASE("whatever is kept, backward finds what it reads, and a larger budget never recomputes more") {
  for (const std::string& model : testing::small_models()) {
    CAPTURE(model);
    const Block block(testing::small_model(model));
    for (const std::string policy : {"selective", "selective:attention", "selective:glu,linear", "selective:rms_norm",
                                     "selective:add/2,rope,activation"}) {
      CAPTURE(policy);
      CHECK(makes_all_that_is_saved(block, block.of(policy)));
    }
    const Recomputation all = recompute_all(block.ops());
    CHECK(makes_all_that_is_saved(block, all));
    CHECK(block.of("budget:0%").runs == all.runs);
    CHECK(block.run(block.of("budget:100%")).empty());
    double before = block.work(all);
    for (std::int64_t percent = 0; percent <= 100; percent += 10) {
      CAPTURE(percent);
      const Recomputation made = block.of("budget:" + std::to_string(percent) + "%");
      CHECK(makes_all_that_is_saved(block, made));
      CHECK(block.bytes(made.kept).n <= block.bytes(block.saved).n * percent / 100);
      CHECK(block.work(made) <= before);
      before = block.work(made);
    }
  }
}

}  // namespace vramfit
