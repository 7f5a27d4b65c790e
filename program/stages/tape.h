// The tape of a segment: the order in which its ops run forward, recomputed and backward, and when each
// value and gradient is dropped. One list, read by the estimator for bytes and by the executor for work.
#pragma once

#include <memory>
#include <vector>

#include "program/ops/rule.h"
#include "program/stages/kept_values.h"

namespace vramfit {

/// How the gradient of one input of an op is obtained. Taking shares the storage; a later entry of the list drops the
/// other owner.
struct GradientTarget {
  enum class Mode { none, fresh, accumulate, take_output_gradient, take_saved } mode = Mode::none;
  int value = -1;  // take_saved: the value whose storage is written over
};

struct TapeAction {
  enum class Do {
    run,           // forward of `op`
    backward,      // backward of `op`; its parameters' gradients go where the unit says. In a forward pass too
                   // (Rule::backward_in_forward)
    drop_value,    // forget `value`
    drop_gradient  // forget the gradient of `value`
  } what = Do::run;
  int op = -1, value = -1;
  int joined = -1;  // Do::run: the op that the same pass does first (OpRow::joins); -1: none
  std::vector<GradientTarget> input_gradients = {};  // Do::backward, one per input
};

/// A segment that runs again before its backward: `forward` keeps less than backward reads, `recompute` rebuilds the
/// rest, skipping ops nobody reads.
struct CheckpointedTape {
  std::vector<TapeAction> forward, recompute;
};

/// `forward` keeps what backward reads, `full` only the segment's input, `selective` what each policy says besides.
/// Values of type ids (token ids, labels) belong to the micro-batch and are never dropped here. The segment's
/// output passes to the next segment as its value 0; the last segment's output (the loss) is dropped at the
/// end of its backward. After `backward`, the gradient of value 0, if needed, is that of the previous output.
struct SegmentTape {
  std::vector<TapeAction> forward, backward;
  CheckpointedTape full;
  std::vector<CheckpointedTape> selective;  // of a block, by policy
  bool has_backward = false;                // something in it, or below it, is trainable
  bool input_wants_gradient = false;
  bool output_is_saved = false;  // this segment's backward reads its output too
  std::vector<Rule> rules;       // per op
  std::vector<Needs> needs;      // per op; accumulate_* empty
};

/// What the tapes of a whole graph depend on.
struct TapeInputs {
  const Graph& graph;
  const Precision& precision;
  const Device& device;
  Attention attention = Attention::automatic;
  bool deterministic = false;
  BatchShape shape;
  std::vector<bool> trainable;            // per parameter of the graph
  std::vector<KeptPolicy> policies = {};  // of SegmentTape::selective
  KernelSource kernels = KernelSource::libtorch;
};

/// What a job's checkpointed segments do; the tape was made with kept_policies() of that job.
const CheckpointedTape& checkpointed_tape(const SegmentTape& tape, const Job& job);

/// What a resolved job makes of them, with the policies that a search chooses from besides its own, so that jobs share
/// their tapes which differ in that alone; refers to all three.
TapeInputs tape_inputs(const Graph& graph, const Job& job, const Device& device);

/// One tape per segment. Throws NotModelled where an op has no rule, std::logic_error when a graph asks
/// for an in-place op that would destroy a value still read.
std::vector<SegmentTape> make_tapes(const TapeInputs& inputs);

/// The same, but segments with the same structure (the layers of a model) share one tape.
using SharedTapes = std::vector<std::shared_ptr<const SegmentTape>>;
SharedTapes make_shared_tapes(const TapeInputs& inputs);

/// What a segment's tape needs to know about the segment before it.
struct IncomingTape {
  bool wants_gradient = false;  // of the segment's input
  bool is_shared = false;       // the segment before keeps its output for its own backward
  bool operator==(const IncomingTape&) const = default;
};

/// Tapes that were made for one model, of graphs that differ in their loss alone, and otherwise for equal inputs. The
/// graphs outlive it.
struct KnownTapes {
  /// Of a segment; what the next one's needs to know.
  struct Made {
    const Segment* segment = nullptr;
    IncomingTape incoming, outgoing;
    std::shared_ptr<const SegmentTape> tape;
  };
  std::vector<std::vector<std::int64_t>> shapes;  // of all parameters
  std::vector<bool> trainable;                    // likewise
  std::vector<Made> made;
};
/// Likewise, of segments that have the same structure as one before them, or as a known one, to which new ones are
/// added. If the graph's parameters differ from the known ones, what is known is dropped.
SharedTapes make_shared_tapes(const TapeInputs& inputs, KnownTapes& known);

/// Whether a value and its gradient count as logits_and_loss: everything in a loss segment, the head's "logits...".
bool in_loss_region(const Segment& segment, int value);

}  // namespace vramfit
