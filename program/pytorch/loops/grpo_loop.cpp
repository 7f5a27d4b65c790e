// The loop of TRL's GRPOTrainer (1.16) with its defaults, without generation (trl/trainer/grpo_trainer.py): the scores
// of completions, and a loss of their log-probabilities. What generation takes is left out. Where completions are
// trained on in several steps, each step here begins with new ones.
#include <optional>
#include <utility>

#include "program/pytorch/calls/autocast.h"
#include "program/pytorch/loops/deepspeed_loop.h"
#include "program/pytorch/loops/grpo_rewards.h"
#include "program/pytorch/loops/pickled.h"
#include "program/pytorch/loops/referenced_loop.h"
#include "program/stages/adapters.h"

namespace vramfit::eager {

namespace {

class GrpoLoop : public ReferencedLoop {
 public:
  explicit GrpoLoop(LoopParts parts) : GrpoLoop(std::move(parts), scorers_of(parts.job)) {}

  void micro_batch(Place place) override {
    is_first_ = place.is_first;
    ReferencedLoop::micro_batch(place);
  }

 private:
  struct Scorers {
    bool has_second = false, scores_itself = false;
  };
  static Scorers scorers_of(const Job& job) {
    const bool has_reference = job.grpo.has_reference, adapts = has_adapters(job);
    return {.has_second = has_reference && !adapts,
            .scores_itself = reuses_completions(job) || (has_reference && adapts)};
  }
  GrpoLoop(LoopParts&& parts, Scorers scorers)
      : ReferencedLoop(std::move(parts), scorers.has_second, scorers.scores_itself) {}

  static constexpr Torch::ScoresWanted kScores{.entropy = true, .mean_logits = false, .is_top = false};
  static constexpr std::int64_t kPrompt = 1;  // tokens

  /// Of all micro-batches that are generated for at once, which have parts of them.
  struct Generated {
    Tensor prompts, prompt_mask, completions, completion_mask, advantages, tokens;
    Tensor old, reference;  // log-probabilities
  };
  enum class Scorer { itself, without_adapters, reference };

  bool counts_labels() const override { return false; }
  /// Texts, which stay on the host.
  Inputs moved_inputs() override { return {}; }
  std::int64_t rows() const { return parts_.job.micro_batch; }
  std::int64_t rows_of_generation() const { return checked_mul(rows(), micro_batches_of_generation(parts_.job)); }
  bool has_reference() const { return parts_.job.grpo.has_reference; }
  bool has_old() const { return reuses_completions(parts_.job); }
  std::int64_t scored_tokens() const { return parts_.job.sequence - kPrompt; }
  std::int64_t scored_of_micro_batch() const { return checked_mul(rows(), scored_tokens()); }

  Tensor numbers_of_host(std::int64_t count, Dtype dtype, const char* what) {
    return numbers("aten::_to_copy", {}, count, dtype, what);
  }

  /// _compute_loss
  Tensor loss_of(const Inputs& /*inputs*/) override {
    const Scope scope(heap(), "loss");
    if (is_first_) generate();
    Inputs seen;
    seen.ids = joined(buffered_.prompts, buffered_.completions, rows(), "ids");
    seen.mask = joined(buffered_.prompt_mask, buffered_.completion_mask, rows(), "mask");
    Tensor mask = buffered_.completion_mask;
    mask.elements = scored_of_micro_batch();
    Tensor log_probabilities, entropies;
    score(seen, log_probabilities, entropies);
    Tensor advantages = buffered_.advantages;
    advantages.elements = rows();
    Tensor old = buffered_.old.storage ? of_micro_batch(buffered_.old) : detached(log_probabilities);
    old.wants_gradient = false;
    const Tensor log_ratio = torch().minus(log_probabilities, old);
    const Tensor ratio = torch().exp(log_ratio);
    const Tensor divergence = has_reference() ? divergence_of(log_probabilities, ratio) : Tensor{};
    const Tensor clipped = torch().clamp(ratio, 2);
    const Tensor first = torch().multiply_by_constant(ratio, advantages);
    const Tensor second = torch().multiply_by_constant(clipped, advantages);
    Tensor losses = torch().negative(torch().smaller(first, second));
    if (has_reference()) losses = torch().add(losses, torch().scale(divergence));  // by GRPOConfig's beta
    const Tensor normalizer = this->normalizer();
    Tensor loss;
    {
      const Tensor sum = torch().sum(torch().multiply_by_constant(losses, mask));
      loss = torch().divide_by(sum, normalizer);
    }
    if (has_reference()) log_mean_of_tokens(detached(divergence), mask);
    log_metrics(detached(ratio), entropies, mask);
    return loss;
  }

  Tensor of_micro_batch(Tensor log_probabilities) const {
    log_probabilities.elements = scored_of_micro_batch();
    return log_probabilities;
  }

  /// exp(reference - own) - (reference - own) - 1, times the ratio to the old ones (use_bias_correction_kl)
  Tensor divergence_of(const Tensor& log_probabilities, const Tensor& ratio) {
    const Tensor reference = of_micro_batch(buffered_.reference);
    Tensor difference;
    {
      const Tensor of_both = torch().exp(torch().minus(reference, log_probabilities));
      difference = torch().minus(of_both, torch().minus(reference, log_probabilities));
    }
    difference = torch().add_scalar(difference);
    return torch().multiply(difference, ratio);
  }

  Tensor labels_of(const Inputs& seen) {
    const Tensor flags = numbers("aten::eq", {reads(seen.mask)}, seen.mask.elements, Dtype::u8, "is padding");
    return numbers("aten::masked_fill", {reads(seen.ids), reads(flags)}, seen.ids.elements, Dtype::i64, "labels");
  }

  /// _get_per_token_logps_and_entropies, of one batch.
  void score(Inputs seen, Tensor& log_probabilities, Tensor& entropies) {
    seen.labels = labels_of(seen);
    const Outputs outputs = scored(seen);
    log_probabilities = torch().clone(torch().seen_as_slice(outputs.scores.log_probabilities));
    const Tensor& entropy = outputs.scores.entropy;
    entropies = numbers("aten::cat", {reads(entropy)}, entropy.elements, entropy.dtype, "entropies");
  }

  /// The same of all rows, a micro-batch's at a time, without gradients and checkpoints.
  Tensor scored_before(const Tensor& ids, const Tensor& mask, Scorer scorer) {
    torch().set_gradients(false);
    Inputs seen{.ids = ids, .mask = mask, .labels = {}};
    seen.ids.elements = seen.mask.elements = checked_mul(rows(), parts_.job.sequence);
    std::vector<Tensor> parts;
    Accesses read;
    Outputs outputs;  // until the end, as in Python
    for (std::int64_t i = 0; i < micro_batches_of_generation(parts_.job); ++i) {
      parts_.enter(Phase::forward);
      seen.labels = labels_of(seen);
      outputs = scored_by(scorer, seen);
      parts.push_back(torch().seen_as_slice(outputs.scores.log_probabilities));
      read.push_back(reads(parts.back()));
    }
    parts_.enter(Phase::forward);
    torch().set_gradients(true);
    return numbers("aten::cat", read, checked_mul(rows_of_generation(), scored_tokens()), parts[0].dtype,
                   "log-probabilities");
  }

  std::optional<Dtype> dtype_of_products() const {
    return is_mixed_in_16_bits(parts_.job) ? std::optional(parts_.job.precision.compute) : std::nullopt;
  }

  Outputs scored_by(Scorer scorer, const Inputs& seen) {
    const Autocast autocast(torch(), dtype_of_products());
    if (scorer == Scorer::reference) return scored_by_second(seen);
    return scored_by_itself(seen, scorer == Scorer::itself, kScores);
  }

  /// In accelerator.autocast, whatever wraps the model.
  Outputs scored(const Inputs& seen) {
    const Autocast autocast(torch(), dtype_of_products());
    // TRL has turned them on again after generation (trl/models/utils.py: disable_gradient_checkpointing).
    const bool is_reentrant = asks_for_reentrant_checkpoints();
    return returned(parts_.wrapper,
                    forward_with_scores({parts_.model, parts_.wrapper, true, is_reentrant}, seen, kScores));
  }

  Tensor joined(const Tensor& prompts, const Tensor& completions, std::int64_t rows, const char* what) {
    return numbers("aten::cat", {reads(prompts), reads(completions)}, checked_mul(rows, parts_.job.sequence),
                   Dtype::i64, what);
  }

  /// How many tokens count in a step.
  Tensor normalizer() {
    Tensor of_rank;
    {
      Tensor at_least;
      {
        const Tensor wide = number("aten::_to_copy", {reads(buffered_.tokens)}, Dtype::f32, "tokens that count");
        at_least = number("aten::clamp", {reads(wide)}, Dtype::f32, "tokens that count, at least 1");
      }
      of_rank = number("aten::div", {reads(at_least)}, Dtype::f32, "tokens that count, by ranks");
    }
    const Tensor scaled = number("aten::mul", {reads(of_rank)}, Dtype::f32, "tokens that count, by micro-batches");
    return number("aten::div", {reads(scaled)}, Dtype::f32, "normalizer");
  }

  /// global_masked_mean
  void log_mean_of_tokens(const Tensor& x, const Tensor& mask) {
    Tensor sum, count, both;
    {
      const Tensor kept = numbers("aten::mul", {reads(x), reads(mask)}, x.elements, x.dtype, "what counts");
      sum = torch().sum(kept);
    }
    {
      const Tensor whole = torch().sum(mask);
      count = number("aten::_to_copy", {reads(whole)}, Dtype::f32, "tokens that count");
    }
    {
      const Tensor stacked = numbers("aten::stack", {reads(sum), reads(count)}, 2, Dtype::f32, "sum and count");
      both = numbers("aten::clone", {reads(stacked)}, 2, Dtype::f32, "sum and count over ranks");
    }
    if (ranks() > 1) {
      heap().wait(heap().start(program::Collective::all_reduce, program::Axis::data, {changes(both)}, Stream::compute),
                  Stream::compute);
    }
    const Tensor at_least = number("aten::clamp", {reads(both)}, Dtype::f32, "count, at least 1");
    const Tensor mean = number("aten::div", {reads(both), reads(at_least)}, Dtype::f32, "mean for the log");
  }

  Tensor as_numbers(const Tensor& flags) {
    return numbers("aten::_to_copy", {reads(flags)}, flags.elements, Dtype::f32, "flags as numbers");
  }

  /// coef_1 beyond a bound, where the advantage is on its side.
  Tensor is_clipped(const char* call, const Tensor& ratio) {
    const Tensor beyond = numbers(call, {reads(ratio)}, ratio.elements, Dtype::u8, "is beyond the bound");
    const Tensor side = numbers(call, {reads(buffered_.advantages)}, rows(), Dtype::u8, "sign of the advantage");
    return numbers("aten::bitwise_and", {reads(beyond), reads(side)}, ratio.elements, Dtype::u8, "is clipped");
  }

  /// masked_seq_mean
  Tensor shares_of_rows(const Tensor& flags, const Tensor& mask) {
    const Tensor wide = as_numbers(flags);
    Tensor sum;
    {
      const Tensor kept = numbers("aten::mul", {reads(wide), reads(mask)}, wide.elements, wide.dtype, "what counts");
      sum = torch().sum_of_rows(kept, scored_tokens());
    }
    const Tensor count = torch().sum_of_rows(mask, scored_tokens());
    return numbers("aten::div", {reads(sum), reads(count)}, rows(), Dtype::f32, "shares of rows");
  }

  /// nanmin, or nanmax.
  void log_extreme(const Tensor& x) {
    const auto missing = [&] { return numbers("aten::isnan", {reads(x)}, x.elements, Dtype::u8, "is missing"); };
    {
      const Tensor flags = missing();
      const Tensor all = torch().all_true(flags);
    }
    Tensor chosen;
    {
      Tensor there;
      {
        const Tensor flags = missing();
        there = numbers("aten::bitwise_not", {reads(flags)}, x.elements, Dtype::u8, "is there");
      }
      chosen = torch().chosen_numbers(x, there);
    }
    const Tensor extreme = number("aten::min", {reads(chosen)}, x.dtype, "extreme for the log");
  }

  /// All of it lives until compute_loss returns, but for what is a number in Python by then.
  void log_metrics(const Tensor& ratio, const Tensor& entropies, const Tensor& mask) {
    log_mean_of_tokens(entropies, mask);
    const Tensor low = is_clipped("aten::lt", ratio), high = is_clipped("aten::gt", ratio);
    const Tensor either =
        numbers("aten::bitwise_or", {reads(low), reads(high)}, low.elements, Dtype::u8, "is either clipped");
    for (const Tensor* flags : {&low, &high, &either}) log_mean_of_tokens(as_numbers(*flags), mask);
    const Tensor lows = gathered(shares_of_rows(low, mask));
    log_extreme(lows);
    const Tensor highs = gathered(shares_of_rows(high, mask));
    log_extreme(highs);
  }

  /// _generate_and_score_completions; where Python lets go of what was there before, that stays and this goes.
  void generate() {
    log_lengths();
    Generated made;
    made.prompts = numbers_of_host(checked_mul(rows_of_generation(), kPrompt), Dtype::i64, "prompts");
    made.prompt_mask = numbers_of_host(made.prompts.elements, Dtype::i64, "mask of prompts");
    made.completions = numbers_of_host(checked_mul(rows_of_generation(), scored_tokens()), Dtype::i64, "completions");
    made.completion_mask = numbers_of_host(made.completions.elements, Dtype::i64, "mask of completions");
    made.tokens = total(torch().sum(made.completion_mask));
    {
      const Tensor ids = joined(made.prompts, made.completions, rows_of_generation(), "ids of the step");
      const Tensor mask = joined(made.prompt_mask, made.completion_mask, rows_of_generation(), "mask of the step");
      if (has_old()) made.old = scored_before(ids, mask, Scorer::itself);
      if (has_reference()) {
        const bool adapts = has_adapters(parts_.job);
        made.reference = scored_before(ids, mask, adapts ? Scorer::without_adapters : Scorer::reference);
      }
      const std::int64_t all = checked_mul(rows_of_generation(), ranks());
      const GrpoRewards rewards(torch(),
                                {.own = rows_of_generation(), .all = all, .of_group = completions_of_group(parts_.job)},
                                [this](Tensor x) { return gathered(x); });
      made.advantages = rewards.advantages([this] { log_texts(); });
    }
    Generated shuffled = made;
    for (Tensor* x : {&shuffled.prompts, &shuffled.prompt_mask, &shuffled.completions, &shuffled.completion_mask,
                      &shuffled.advantages, &shuffled.old, &shuffled.reference}) {
      if (!x->storage) continue;
      const std::int64_t count = x == &shuffled.advantages ? rows_of_generation() : x->elements;
      const Tensor order = numbers_of_host(rows_of_generation(), Dtype::i64, "order of rows");
      *x = numbers("aten::index", {reads(*x), reads(order)}, count, x->dtype, "rows in another order");
    }
    if (!buffered_.prompts.storage) buffered_ = std::move(shuffled);
  }

  /// Of prompts and completions, and lists of what reward functions log beside, which is nothing.
  void log_texts() {
    // With FSDP2's CPU offload there is a process group for the host, which texts are then on.
    const bool are_on_host = is_sharded() && !parts_.job.offload.empty();
    if (!gathers() || are_on_host) return;
    gather_object(pickled_texts(rows_of_generation(), kPrompt));
    gather_object(pickled_texts(rows_of_generation(), scored_tokens()));
    for (int list = 0; list < 2; ++list) gather_object(pickled_texts(0, 0));
  }

  /// torch.distributed.all_gather_object of something of as many bytes on each rank.
  void gather_object(std::int64_t bytes) {
    {
      const Tensor sizes = numbers("aten::zeros", {}, ranks(), Dtype::i64, "sizes of objects");
      const Tensor own = number("aten::_to_copy", {}, Dtype::i64, "size of the object");
    }
    const Tensor own = numbers_of_host(bytes, Dtype::u8, "object");
    const std::int64_t all = checked_mul(bytes, ranks());
    const Tensor objects = numbers("aten::empty", {}, all, Dtype::u8, "objects of all ranks");
    const Tensor flat = gathered_from_ranks(own);
    heap().run("aten::copy_", {reads(flat), changes(objects)});
  }

  /// What _generate computes for the log, of completions of which none has ended by itself.
  void log_lengths() {
    const std::int64_t own = rows_of_generation();
    const Tensor prompts = numbers_of_host(own, Dtype::i64, "lengths of prompts");
    const Tensor completions = numbers_of_host(own, Dtype::i64, "lengths of completions");
    const Tensor all_prompts = gathered(prompts), all = gathered(completions);
    const Tensor total = torch().sum(all_prompts);
    {
      const Tensor more = torch().sum(all);
      const Tensor both = number("aten::add", {reads(total), reads(more)}, Dtype::i64, "tokens");
    }
    const char* const kStatistics[] = {"aten::mean", "aten::min", "aten::max"};
    for (const char* const call : kStatistics) log_statistic(call, as_numbers(all));
    const Tensor cut = numbers_of_host(own, Dtype::u8, "is cut"), is_cut = gathered(cut);
    log_statistic("aten::mean", as_numbers(is_cut));
    {
      const Tensor has_ended = numbers("aten::bitwise_not", {reads(is_cut)}, is_cut.elements, Dtype::u8, "has ended");
      torch().look_for_none(has_ended);
    }
    const Tensor none = number("aten::zeros", {}, Dtype::f32, "length of none");
    for (const char* const call : kStatistics) log_statistic(call, none);
  }

  void log_statistic(const char* call, const Tensor& x) {
    const Tensor logged = number(call, {reads(x)}, x.dtype, "number for the log");
  }

  Generated buffered_;
  bool is_first_ = true;
};

}  // namespace

std::unique_ptr<Loop> make_grpo_loop(LoopParts parts) {
  if (parts.job.runtime == Runtime::deepspeed) return std::make_unique<UnderDeepSpeed<GrpoLoop>>(std::move(parts));
  return std::make_unique<GrpoLoop>(std::move(parts));
}

}  // namespace vramfit::eager
