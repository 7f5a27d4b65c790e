#include "program/pytorch/walk/record.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>

#include "model_specs/loss_layout.h"
#include "program/pytorch/compiled/compiled.h"
#include "program/pytorch/loops/loop.h"
#include "program/pytorch/modelings/gpt2_graph.h"
#include "program/pytorch/modelings/segment_reader.h"
#include "program/pytorch/walk/whole_walks.h"

namespace vramfit::eager {

namespace {

using program::Section;

/// The job as the model sees it: of a micro-batch of N pairs it is given 2 N rows, and of packed documents one.
Job walked(const Job& job) {
  Job seen = eager_form(job);
  seen.micro_batch = rows_of_micro_batch(job);
  if (!job.packs_documents) return seen;
  seen.sequence = checked_mul(seen.micro_batch, seen.sequence);
  seen.micro_batch = 1;
  return seen;
}

/// How many a packed micro-batch has at least, so that it has a mask: one of --seq-len in each row, and two in a single
/// row. Of more, fewer tokens have labels.
std::int64_t documents_of(const Job& job) {
  constexpr std::int64_t kOfMask = 2;
  return job.packs_documents ? std::max(kOfMask, job.micro_batch) : 0;
}

/// What set_work_of() changes it looks for by its label.
Recording recording_for(const program::LowerInputs& inputs) {
  Recording recording;
  recording.calls = inputs.calls || is_timed_alone(inputs.job);
  recording.reserves_below = inputs.reserves_below;
  if (!inputs.labels && !is_timed_alone(inputs.job)) {
    recording.labels = program::Labels(program::Labels::Kept::numbers);
  }
  return recording;
}

/// Whether the last micro-batch of a step does what those before it do: gradients are reduced by each, or by none.
bool ends_alike(const Job& job) {
  return job.modeling == Modeling::torchtune || (job.runtime == Runtime::pytorch && data_ranks(job) == 1);
}

/// Loading, a first step and a later one, cut into sections.
class Trainer {
 public:
  Trainer(const program::LowerInputs& inputs, const Graph& graph, MakeWrapper make)
      : job_(walked(inputs.job)),
        is_compiled_(is_timed_alone(inputs.job)),
        recording_(recording_for(inputs)),
        torch_(recording_, inputs.device, graph.parameters.size()),
        model_(make_model(graph, job_, torch_)),
        wrapper_(make(torch_, graph, job_, model_->modules())),
        loop_(make_loop({.graph = graph,
                         .job = job_,
                         .documents = documents_of(inputs.job),
                         .clip = inputs.run.clip,
                         .torch = torch_,
                         .model = *model_,
                         .wrapper = *wrapper_,
                         .enter = [this](Phase phase) { enter(phase); }})) {}

  program::Program run() {
    walk({.kind = Section::Kind::load}, [this] {
      enter(Phase::load);
      loop_->load_first();
      wrapper_->load();
      model_->load();
      loop_->prepare();
    });
    train(Section::Steps::first);
    train(Section::Steps::later);
    recording_.writer.be_quiet(true);  // what is allocated now lives on
    return {.labels = recording_.labels.take(),
            .segments = {},
            .outputs = {},
            .views = std::move(recording_.views),
            .main = std::move(recording_.writer.code()),
            .blocks = {},
            .sections = std::move(sections_),
            .groups = program::groups_of(job_.mesh, 1),
            .tokens = recording_.tokens};
  }

 private:
  std::size_t position() { return recording_.writer.code().instructions.size(); }

  void enter(Phase phase) { recording_.writer.write(program::Mark{phase}); }

  template <typename Code>
  void walk(Section section, const Code& code) {
    section.begin = position();
    code();
    section.end = position();
    sections_.push_back(section);
  }

  void train(Section::Steps steps) {
    const std::int64_t count = job_.accumulation;
    if (count > 1) walk({.kind = Section::Kind::first, .steps = steps}, {.is_last = false});
    std::int64_t alike = count - 2;
    if (alike > 0 && steps == Section::Steps::first && wrapper_->settles_in_second()) {
      walk({.kind = Section::Kind::first, .steps = steps}, {.is_first = false, .is_last = false});
      --alike;
    }
    std::int64_t apart = 0;
    if (has_unlike_micro_batches()) apart = std::min(alike, kMostApartInTorchtitan);
    if (WholeWalks::are_wanted()) apart = alike;
    for (; apart > 0; --apart, --alike) {
      walk({.kind = Section::Kind::middle, .steps = steps}, {.is_first = false, .is_last = false});
    }
    if (alike > 0) middle({.kind = Section::Kind::middle, .times = alike, .steps = steps});
    last({.kind = Section::Kind::last, .steps = steps}, count);
    walk({.kind = Section::Kind::update, .steps = steps}, [this] { loop_->update(); });
  }

  void walk(const Section& section, Loop::Place place) {
    walk(section, [&] { loop_->micro_batch(place); });
  }

  /// torchtitan's inputs and losses live until a step's end, so that none of its micro-batches is like another.
  bool has_unlike_micro_batches() const { return job_.modeling == Modeling::torchtitan_02; }

  /// What is done again is not walked again: the same instructions are another section. Those of compiled code and FP8
  /// are changed section by section.
  bool does_again(Section section, Section::Kind kind) {
    if (is_compiled_ || WholeWalks::are_wanted() || has_unlike_micro_batches()) return false;
    const auto known = std::ranges::find(sections_, kind, &Section::kind);
    if (known == sections_.end()) return false;
    section.begin = known->begin;
    section.end = known->end;
    sections_.push_back(section);
    return true;
  }

  /// Those of later steps are that of the first, unless weights stay gathered between micro-batches, which are other
  /// buffers in each step.
  void middle(const Section& section) {
    if (!wrapper_->settles_in_second() && does_again(section, Section::Kind::middle)) {
      loop_->pass_over();
    } else {
      walk(section, {.is_first = false, .is_last = false, .is_repeated = true});
    }
  }

  /// One that ends as the others do is what one between the first and the last is, or else the last of the first step.
  void last(const Section& section, std::int64_t count) {
    const bool may_be_known = count > 1 && ends_alike(job_);
    if (may_be_known && (does_again(section, Section::Kind::middle) || does_again(section, Section::Kind::last)))
      return;
    walk(section, {.is_first = count == 1});
  }

  Job job_;
  bool is_compiled_;
  Recording recording_;
  std::vector<Section> sections_;
  Torch torch_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Wrapper> wrapper_;
  std::unique_ptr<Loop> loop_;
};

}  // namespace

program::Program record(const program::LowerInputs& inputs, MakeWrapper make) {
  if (inputs.job.compile && has_experts(inputs.graph)) refuse_model(inputs.job, "experts with --compile on");
  if (inputs.job.compile && inputs.graph.masked_lm) refuse_model(inputs.job, "BERT with --compile on");
  if (inputs.job.compile && has_learned_positions(inputs.graph)) refuse_model(inputs.job, "GPT-2 with --compile on");
  // A loop that computes its loss in parts cuts the logits of all tokens, which its model makes like any other.
  std::optional<Graph> whole;
  if (std::holds_alternative<ChunkedLoss>(inputs.job.loss)) whole = with_loss(inputs.graph, {});
  program::Program program = Trainer(inputs, whole ? *whole : inputs.graph, make).run();
  set_work_of(program, inputs.job);
  return program;
}

}  // namespace vramfit::eager
