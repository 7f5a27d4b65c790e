// A training step as one program: what is allocated, computed, sent and freed, in order. `lower` makes it
// (program/lowering/), nothing changes it afterwards, and readers need no other description of the step: bytes
// (program/readers/bytes.h), seconds (estimator/time/seconds.h) and its check (program/readers/check.h).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/text/units.h"
#include "model_specs/dtype.h"
#include "program/ledger/ledger.h"
#include "program/work.h"

namespace vramfit {
enum class Do;  // of the schedule (program/schedules/schedule.h)
struct Mesh;    // job/job.h
}  // namespace vramfit

namespace vramfit::program {

/// Where a buffer lies: in the card's memory; in host memory that is pinned, so that the card copies from and to it
/// beside everything else; in other host memory; or in managed memory, which moves to whoever touches it.
enum class Space : std::uint8_t { device, pinned, host, managed };
inline constexpr int kSpaces = 4;
std::string_view space_name(Space space);

/// A slot with bytes. In a block, labels are completed by the segment that a call names.
struct Buffer {
  Bytes bytes;
  int label = -1;    // in Program::labels
  int segment = -1;  // in Program::segments, whose name goes before the label; -1: none, or that of the call
  Category category = Category::temporaries;
  Stream stream = Stream::compute;
  Dtype dtype = Dtype::u8;  // of its elements
  Space space = Space::device;
  Bytes expected = {};  // where `bytes` is a bound (routed tokens): what is likely used of it; 0: all of it
};

/// add: reads and writes; write_part: what is left is undefined until a gather completes it; pass: what it holds is a
/// further value too, and nothing is written (the gradient of both summands is that of their sum).
enum class How : std::uint8_t { read, write, write_part, add, pass };

/// A part of a buffer as an instruction sees it: a matrix, or a list of `rows` elements. In blocks, places of
/// parameters are the call's: it says where its own one starts.
struct View {
  std::int64_t offset = 0;             // elements from the buffer's start, or from Code::offsets[call's first + base]
  std::int64_t rows = 0, columns = 0;  // columns 0: a list
  std::int64_t pitch = 0;              // elements from one row to the next
  Dtype dtype = Dtype::f32;
  int base = -1;
  int parts = 1;  // this view and those after it in Program::views that an access means together, in this order
  bool operator==(const View&) const = default;
};
/// Neighbouring elements of a buffer.
constexpr View list_view(std::int64_t offset, std::int64_t elements, Dtype dtype) {
  return {.offset = offset, .rows = elements, .dtype = dtype};
}
/// Elements from the view's first one to the end of its last one; 0: it is empty.
constexpr std::int64_t reach(const View& view) {
  if (view.columns == 0 || view.rows == 0) return view.rows;
  return (view.rows - 1) * view.pitch + view.columns;
}

struct Access {
  int buffer = -1;  // -1: an operand that the call does without
  How how = How::read;
  std::int16_t value = -1;  // what the buffer holds then (value_of, gradient_of); -1: not told
  int view = -1;            // in Program::views; -1: all of the buffer, as a list
};
/// Access::value of a value of the segment, and of its gradient.
constexpr std::int16_t value_of(int value) { return static_cast<std::int16_t>(2 * value); }
constexpr std::int16_t gradient_of(int value) { return static_cast<std::int16_t>(2 * value + 1); }

/// Elements `first` to `first + count` of one of Code's vectors.
struct Range {
  std::uint32_t first = 0, count = 0;
};

/// The function that a run calls. Its operands are the run's accesses, in the order given here.
enum class Kernel : std::uint8_t {
  zero,  // any buffers, or what is viewed of them
  // Shards of `unit`, one for each of its storages; if the first one's parameters have scales, those; what rank 0 reads
  // other ranks' rows into.
  load_shard,
  load_states,  // of `unit`: the optimizer's states (program/optimizers)
  load_mask,    // gradient mask of `unit`
  load_scale,   // loss scale, growth tracker, found inf
  rope_table,   // cos, sin of rope number `parameter`
  workspaces,   // those that libraries make themselves
  inputs,       // token ids, labels; on GPUs the pinned buffers that they are copied from
  gather_own,   // shards of `unit`, and scales -> this rank's slices of the gathered unit
  gather_kept,  // kept slice -> the same, in the rank's group
  keep_slice,   // gathered unit -> the slice that the rank keeps
  copy,         // buffer -> another of as many elements
  add,          // the same, added
  add_whole,    // gradient of `parameter` -> its place in the gradient shard of `unit`, added
  add_own,      // likewise, from this rank's slice of the whole gradient
  // Gradient of `parameter`, whole or this rank's slice of it; codes and scale of what is kept of it in FP8, to which
  // it is added; on GPUs what that works in.
  add_fp8,
  // Whole gradient of `parameter` -> codes, rank by rank, and the ranks' scales; codes of all ranks for this one, and
  // their scales -> codes and scale of what is kept, to which they are added. On GPUs with what that works in.
  code_fp8,
  add_fp8_parts,
  sum_fp8,  // of `unit`: codes and scales of all replicas -> codes and scales of their sum; on GPUs what that works in
  // Of `unit`: shard of matrices with scales, those, shard of what else is trained -> all that as numbers; and back, on
  // GPUs with what that works in.
  read_scaled,
  round_scaled,
  read_fp8,    // of `unit`: codes and scales of gradients in FP8, the shard of the others -> all as one shard
  forward,     // of `op`: inputs, weights, outputs
  backward,    // of `op`: saved inputs, saved outputs, gradients of outputs, weights; gradients of inputs, of weights
  add_loss,    // loss of a micro-batch -> loss of the step
  norm_begin,  // gradient norm
  // `times` parts of kNormPart elements of a gradient shard -> gradient norm; on GPUs, the norm of a part
  norm_parts,
  norm_rest,  // the elements after those parts, likewise; on CPU ranks, all
  scale,      // gradient norm; clip scale; of a scaled loss its scale and found inf
  mask,       // gradient shards, gradient masks
  update,     // of `unit`: shard of trainable parameters, gradient shard; clip scale, found inf; the optimizer's states
  update_scale,  // loss scale, growth tracker; found inf
  // Of the units that the rank saves: copy on the host; each unit's shards and its optimizer's states
  save_states,
  gather_parameter,  // the shard that has it -> this rank's part of the whole `parameter`
  gather_scaled,     // likewise; its scale is the second operand
  write_parameter,   // `parameter`, whole or in the only shard; on GPUs the host memory that it is written from
  encode,            // masters of `unit` in host memory -> the codes that the card is to have of them
  call               // of PyTorch's library, which the program only records
};
inline constexpr std::size_t kKernels = static_cast<std::size_t>(Kernel::call) + 1;
std::string_view kernel_name(Kernel kernel);
/// Whether what it writes is a copy of what it reads, and goes stale when that is written again.
bool is_copy(Kernel kernel);
/// Whether it works on host memory as well as on the card's.
bool reaches_host(Kernel kernel);

enum class Collective : std::uint8_t { all_gather, reduce_scatter, all_reduce, all_to_all, send, receive };
std::string_view collective_name(Collective collective);
/// The ranks that take part: those of the mesh's axes, or the groups of --reshard N.
enum class Axis : std::uint8_t {
#define AXIS(x) x,
#include "job/sharding/axes.def"
#undef AXIS
  reshard,  // groups within shard
  data,     // all that have rows of the batch: of a mesh with these axes alone, all ranks
  // No job has these yet.
  tensor,
  pipeline,
  expert
};
inline constexpr int kAxes = static_cast<int>(Axis::expert) + 1;
std::string_view axis_name(Axis axis);
/// The ranks of an axis: `members`, each `stride` ranks after the one before.
struct Group {
  std::int64_t members = 1, stride = 1;
};

/// By axis; ranks are counted along the mesh's last axis first.
std::array<Group, kAxes> groups_of(const Mesh& mesh, std::int64_t reshard_ranks);

struct Allocate {
  int buffer = -1;
};
struct Free {
  int buffer = -1;
};
/// What is allocated stays so until the job ends, but is no part of the program any more (a loss kept for a log): the
/// next step allocates a further one.
struct Keep {
  int buffer = -1;
};
/// What the allocator has cached and nothing uses goes back to the card (torch.cuda.empty_cache()).
struct EmptyCache {};
/// What a kernel allocates and frees during its call, in order; it asks for these by itself.
struct Inside {
  enum class What : std::uint8_t { allocate, free } what = What::allocate;
  int buffer = -1;
};
/// One call of a function: the values it touches, what it allocates inside, and the kernels it launches. `times` calls
/// with equal parts follow each other.
struct Run {
  Kernel kernel = Kernel::zero;
  int op = -1;                    // forward, backward: in the segment; call: its name, in Program::labels
  int unit = -1, parameter = -1;  // that it works on
  Range accesses = {}, inside = {};
  Range work = {};
  std::int64_t times = 1;
  Stream stream = Stream::compute;  // begins when what came before it on that stream is done
  bool has_backward = false;        // forward: a backward of the op follows, which may do its work as well
  int joined = -1;                  // forward: the op that the same pass does first; its operands come first, too
};
/// A collective runs beside all streams, from the moment that what came before it on `stream` and earlier collectives
/// of its axis are done.
struct Start {
  Collective collective = Collective::all_gather;
  Axis axis = Axis::shard;
  Range accesses;
  Bytes bytes = {};  // of the whole data: what a gather leaves, a reduce-scatter begins with; all_to_all: at most
  int token = -1;
  Stream stream = Stream::compute;
  int unit = -1;    // all_gather: whose parameters lie in the buffer, each of them gathered
  int peer = -1;    // send, receive: the stage at the other end
  Bytes part = {};  // all_gather: what each rank brings; reduce_scatter: what it keeps; the engine's all_to_all: what
                    // each has for another one; others: all of it
  Bytes expected = {};  // all_to_all: what is likely sent; 0: all of it
};
/// `token` is done when all that came before on `stream` is done (a CUDA event).
struct Record {
  int token = -1;
  Stream stream = Stream::compute;
};
/// What follows on `stream` begins when what was started or recorded with `token` is done.
struct Wait {
  int token = -1;
  Stream stream = Stream::compute;
};
/// The host waits for what came before on `stream` and reads the buffer's only number.
struct HostRead {
  int buffer = -1;
  Stream stream = Stream::compute;
};
/// A block with its slots bound to buffers of the caller.
struct Call {
  int block = -1, segment = -1;
  Range bindings;
  Range offsets = {};  // where the parameters lie that the block's views name (View::base)
};
/// An instruction of the schedule begins.
struct Mark {
  Phase phase = Phase::load;
  bool is_step = false;  // false: load, saving, or the end of a step, which is no instruction
  Do what{};
  int segment = -1, unit = -1;
};

using Instruction = std::variant<Allocate, Free, Keep, Run, Start, Record, Wait, HostRead, Call, Mark, EmptyCache>;

/// A straight list, and what its instructions refer to by index.
struct Code {
  std::vector<Buffer> buffers;
  std::vector<Instruction> instructions;
  std::vector<Access> accesses;
  std::vector<Inside> inside;
  std::vector<Work> work;
  std::vector<int> bindings;  // Call: the buffer of each slot
  std::vector<std::int64_t> offsets;
};

/// What a segment's tape lowers to, once for all calls that lower alike. The first `slots` buffers are the caller's;
/// those that the block allocates itself take their bytes from here.
struct Block {
  Code code;
  int slots = 0;
};

/// A part of the main list. A middle section is run `times` times, and leaves allocated what it found. The last
/// micro-batch may be the instructions of the middle one once more.
struct Section {
  enum class Kind : std::uint8_t { load, first, middle, last, update, save_sharded, save_full } kind = Kind::load;
  std::size_t begin = 0, end = 0;  // instructions of Program::main
  std::int64_t times = 1;
  enum class Steps : std::uint8_t { every, first, later } steps = Steps::every;  // load: none
};

struct Program {
  std::vector<std::string> labels;    // "layers.3: gathered"; after a segment's name: ".norm.out"
  std::vector<std::string> segments;  // names
  std::vector<int> outputs;           // by segment: which of its values is value 0 of the next one
  std::vector<View> views;            // of accesses, each list once; none where nobody will read them
  Code main;
  std::vector<Block> blocks;
  // Load; then one step: first, middle, last micro-batch (with one, only last), update. If the first step differs from
  // later ones (PyTorch makes an optimizer's states in it), the sections of both, one step after the other. Then what
  // may follow a step, if the run does it: the kinds of save.
  std::vector<Section> sections;
  std::array<Group, kAxes> groups = {};  // by axis
  int tokens = 0;
  // Buffers of the main list that hold the results of a step, which it ends with reading to the host. With loss
  // scaling, the next step's scale, and whether there was an overflow.
  int loss = -1, gradient_norm = -1, loss_scale = -1, found_inf = -1;
  int stage = 0;  // of a pipeline
};

/// The sections, those that repeat the instructions of the one before counted among its `times`: for readers to whom it
/// makes no difference which pass is the last.
std::vector<Section> merged_sections(const Program& program);

/// Whether it saves, which is no part of a step.
bool is_save(const Section& section);
/// Whether a training step (1: the first) has the section.
bool is_in_step(const Section& section, int step);

/// "update", "aten::mm".
std::string_view run_name(const Program& program, const Run& run);

/// "layers.3.norm.out": a label, after the name of its segment if it has one (-1: none).
std::string label_text(const Program& program, int segment, int label);

}  // namespace vramfit::program
