// One unit while a step is lowered: where its parameters, gradients and states are, and what moves them.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "model_specs/graph.h"
#include "program/lowering/unit_views.h"
#include "program/lowering/writer.h"
#include "program/optimizers/optimizers.h"
#include "program/stages/units_layout.h"

namespace vramfit::program {

class HostSide;

/// What all units of a rank share.
struct UnitsInputs {
  const Graph& graph;
  const Precision& precision;
  const UnitLayout& layout;
  const Optimizer& optimizer;
  DeviceKind device;
  Writer& writer;
  Labels& labels;
  int& tokens;  // how many there are
  UnitViews& views;
  HostSide& host;
  KernelSource kernels = KernelSource::libtorch;
  std::int64_t replicas = 1;
  OptimizerImplementation form = OptimizerImplementation::fused;
};

class UnitLowering {
 public:
  /// `number`: in the layout.
  UnitLowering(const UnitsInputs& inputs, int number);

  /// The shards and the optimizer's states. `staging`: what rank 0 reads other ranks' rows into; may be empty.
  void load(const Held& staging);
  /// Allocates the gathered storage and starts to fill it, unless it exists or the only shard itself is used.
  void issue();
  /// Issues if that was not done, and waits.
  void wait();
  void release();
  /// Releases all but the slice that the next gather starts from instead of the shard.
  void reshard();
  /// What ops read their weights from: the gathered storage or the shard; empty while the unit isn't gathered.
  const Held& weights() const { return unit_.gathered_is_shard ? shards_.front() : gathered_; }
  /// Where a parameter begins there, in elements.
  std::int64_t weight_offset(int parameter) const {
    const UnitParameter& p = unit_.parameters[slot_of(parameter)];
    return unit_.gathered_is_shard ? p.shard_offset : p.gathered_offset;
  }

  /// Where an op of `kind` writes its gradient of `parameter`: the gradient shard, or a buffer to be reduced. `is_new`:
  /// declared only; who writes first allocates it, and fills with zeros what it doesn't write.
  struct Home {
    const Held& held;
    bool is_new = false;
    Bytes filled;             // if new
    bool adds = false;        // to what this use, or a sum over uses, has written before
    std::int64_t offset = 0;  // of the whole parameter's gradient there, in elements
  };
  /// The gradient shard with zeros, unless it is there. No use has written to it.
  void make_gradient_shard();
  Home home(OpKind kind, const ParameterUse& use);
  /// Buffers become sums that a later micro-batch reduces, the largest first.
  void accumulate();
  /// Buffers, with the sums of earlier micro-batches, become pieces of the reduction, the largest first.
  void reduce();
  /// Waits for it and adds this rank's slices to the gradient shard.
  void finish();
  const Held& gradient_shard() const { return gradient_shard_; }
  /// All of the unit's gradients as the optimizer reads them: the shard, or, where some are kept in FP8, numbers made
  /// of them, which whoever asks holds as long as it needs them. Empty where there are none.
  Held readable_gradient();
  /// Starts to sum over replicas what of the unit's gradients is kept in FP8, if anything is.
  void start_fp8_sum();
  /// Waits for it, if it is under way, and keeps the sums.
  void finish_fp8_sum();
  /// What has left of it for host memory, complete once it has landed; empty where nothing has.
  Held left_gradient() const { return has_left_ ? host_gradient_ : Held(); }
  /// Starts to copy the gradient shard; the copy's token. The shard stays until it is dropped.
  int send_gradient(const Held& staging);
  void drop_gradient() { gradient_shard_.reset(); }
  /// On the CPU, from a gradient in host memory; what is trained goes back to the card, if it is kept there.
  void update_on_host(const Held& gradient, const Held& divisor, const Held& found_inf);
  /// Writes over the first shard. `divisor` and `found_inf`: what the optimizer is told about all gradients; may be
  /// empty.
  void update(const Held& divisor, const Held& found_inf);

 private:
  /// `first` of the uses of a parameter that have been written.
  class Written {
   public:
    void clear() {
      is_whole_ = has_one_ = false;
      more_.clear();
    }
    /// A reduction or a sum has written all of it.
    void set_whole() { is_whole_ = true; }
    /// Returns whether the use was written before, as it is from now on.
    bool note(std::int64_t first);

   private:
    bool is_whole_ = false, has_one_ = false;
    std::int64_t one_ = 0;
    std::vector<std::int64_t> more_;  // of slices of a packed matrix
  };
  struct Gradient {
    Held held;
    Dtype dtype = Dtype::f32;
  };
  /// What a parameter has while a step is lowered.
  struct Gradients {
    Gradient buffer;  // not yet reduced; empty if there is none
    Held sum;         // the whole gradient of earlier micro-batches, in the reduce dtype; empty if there is none
    Written written_to_buffer, written_to_shard;
  };

  Buffer buffer(std::int64_t elements, Dtype dtype, Category category, std::string_view what) const;
  /// A whole gradient of a parameter, padded.
  Buffer buffer_of(const UnitParameter& p, Dtype dtype, Category category, std::string_view what) const;
  void add_shards(const std::vector<Held>& shards, How how, Writer::Operands& operands) const;
  void add_states(How how, Writer::Operands& operands) const;
  Buffer gradient_shard_buffer() const;
  void forget_written_shard();
  void drop_gradients();
  /// Its place in the unit.
  std::size_t slot_of(int parameter) const {
    return static_cast<std::size_t>(in_.layout.slot_of_parameter[static_cast<std::size_t>(parameter)]);
  }
  /// With one shard: the buffers are added where they belong.
  void add_to_shard();
  Held piece_of(std::size_t slot, Gradient gradient);
  /// The tokens of collectives over the parameters' padded rows.
  int start_gather(Axis axis, Stream stream = Stream::compute);
  int start_reduction();
  int start(Start start, Writer::Listed operands);
  /// This rank's slices of the gathered unit, from `kept_slice_` or from shards on the card.
  void fill_from_kept(How how);
  /// What a GPU makes codes whole in; empty where there are none, and on CPU ranks.
  Held codes_scratch();
  void fill_gathered(const std::vector<Held>& shards, const Held& scratch, How how, Stream stream);
  /// The reduction has them.
  void add_pieces();
  /// What an update needs of whole parameters.
  Buffer sums_buffer(const OptimizerSums& sums) const;
  void add_over_ranks(const Held& sums);
  /// What the update's calls make.
  Range temporaries_of(const UnitUpdate& update) const;
  void run_update(const Held& trained, const Held& gradient, const Held& divisor, const Held& found_inf, Stream stream);

  // program/lowering/unit_offload.cpp
  Buffer placed(Buffer buffer, bool on_host) const;
  void load_on_host();
  /// Fills the gathered storage, or starts to, from shards in host memory.
  void fetch();
  /// Of a shard in host memory whose matrices are codes, what the card has; with offloaded parameters, the codes that
  /// gathers bring there.
  void load_codes();
  /// The host makes codes of them.
  void encode(const Held& into);
  /// It makes them anew, and starts to send those and the rest, if the card keeps them.
  void send_codes();
  /// Starts to copy what a gather needs to `arriving_`.
  void bring_shards();
  /// The gradient shard leaves for host memory.
  void leave();

  /// A copy, parameter by parameter, of this rank's part of the unit: all that is read and written.
  Work passes(Bytes bytes) const;
  /// Adds this rank's rows of a whole gradient to the gradient shard.
  void add_rows(Kernel kernel, std::size_t slot, const Held& gradient, Dtype dtype);
  // program/lowering/unit_scaled.cpp
  /// All that is trained as numbers that an update reads and writes, where the shard has matrices with scales.
  Held numbers_to_update();
  void keep_numbers(const Held& numbers);
  // program/lowering/unit_fp8_gradients.cpp
  void make_gradient_codes();
  void add_fp8_rows(std::size_t slot, const Held& gradient, Dtype dtype);
  /// A whole gradient as codes for the ranks that keep it.
  Held codes_of(std::size_t slot, Gradient gradient);
  void start_exchange();
  void add_exchanged();
  Held fp8_scratch(std::int64_t elements, std::int64_t rows = 1) const;
  void wait_for(int& token);

  Run run_of(Kernel kernel, int parameter = -1) const {
    return {.kernel = kernel, .unit = number_, .parameter = parameter};
  }

  const UnitsInputs& in_;
  const Unit& unit_;
  int number_;
  const UnitViews::Numbers& views_;
  std::vector<Held> shards_;  // by storage
  Held scales_;               // of the first one's parameters
  Held gathered_, kept_slice_, gradient_shard_;
  Held gradient_codes_, gradient_scales_;  // of gradients that are kept in FP8
  Held codes_of_replicas_, scales_of_replicas_;
  std::vector<std::pair<std::size_t, Held>> sent_;  // codes of the parameter at a place, for all ranks
  std::vector<Held> received_;                      // all ranks' for this one, in the same order
  Held sent_scales_, received_scales_;
  // In host memory: the trained part of the first shard where that itself stays on the card, and gradients.
  Held master_, host_gradient_;
  // Where the first shard is in host memory for its codes: these and the rest, on the card; or, with offloaded
  // parameters, the codes in host memory and on the card until they are gathered.
  Held codes_, plain_, arriving_codes_;
  std::vector<Held> host_sums_;  // what the CPU's update needs of whole parameters, in the order of the optimizer's row
  std::vector<Held> arriving_;   // by storage: shards on the card, until they are gathered; scratch
  bool has_left_ = false;        // of this step, a gradient for the host
  std::vector<Held> states_;     // of the optimizer, in the order of its row
  std::vector<Gradients> gradients_;                  // by place in the unit
  std::vector<int> in_order_;                         // parameters, ascending; with one shard
  std::vector<std::pair<std::size_t, Held>> pieces_;  // of the parameter at a place: being reduced
  // Of all parameters, in the compute dtype: whole, and what a rank, or a rank of its group, has of them.
  Bytes padded_bytes_, shard_bytes_, kept_bytes_;
  int gathering_ = -1, reducing_ = -1, summing_ = -1, exchanging_ = -1;  // tokens; -1: nothing is under way
};

}  // namespace vramfit::program
