// Which parameters are whole on a card under DeepSpeed's ZeRO-3 (0.19), module by module: what a module needs is
// gathered before it runs, what follows it in the order of an earlier forward and backward is gathered ahead, and what
// isn't needed soon is let go of (deepspeed/runtime/zero/partitioned_param_coordinator.py).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "job/stacks/zero3_sizes.h"
#include "program/pytorch/calls/torch.h"
#include "program/pytorch/wrappers/wrapper.h"

namespace vramfit::eager {

/// What one collective gathers: parameters of one type arrive in one tensor, and each is copied out of it.
struct Arrival {
  std::vector<std::size_t> parameters;
  Tensor flat = {};  // empty: one parameter, which stays where it arrives
  Tensor sent = {};  // of one parameter whose part is in host memory: its copy, until the gather is done
  int token = -1;
};

/// What is gathered at once, and waited for at once.
struct Gather {
  std::vector<Arrival> arrivals;  // one for each type
  std::int64_t number = 0;        // in the order in which they began
  bool is_complete = false;
};

/// A parameter of which each rank has a part.
struct PartedParameter {
  const Trained* trained = nullptr;
  std::int64_t elements = 0;  // of what is stored: of matrices in 4 bits, bytes
  Dtype dtype = Dtype::bf16;
  bool gets_gradient = true;
  std::int64_t part_elements = 0;  // with the padding
  bool is_persistent = false;      // stays whole until the optimizer's step
  Tensor part;                     // this rank's, of a flat tensor; with offload_param in host memory
  enum class Status { parted, on_its_way, whole } status = Status::parted;
  Tensor whole;
  std::shared_ptr<Gather> gather;     // while it is on its way, or nobody has waited for it
  std::set<std::string> used_by;      // modules that run
  std::int64_t fetched_for_step = 0;  // the last place in the order that it was gathered for
  bool is_of_last_step = false;       // gather_persistent() made it whole
  Tensor of_graph = {};               // it then, while autograd's graph has it, too
};

class Zero3Coordinator {
 public:
  /// `stream`: that gathers, all_gather or with overlap_comm off compute. `offloads`: parts are in host memory.
  Zero3Coordinator(Torch& torch, std::int64_t ranks, Zero3Sizes sizes, Stream stream, bool offloads);

  /// In the order in which they were parted (ds_id).
  std::vector<PartedParameter>& parameters() { return parameters_; }
  const std::vector<PartedParameter>& parameters() const { return parameters_; }
  void add(const Trained& trained, std::int64_t elements, Dtype dtype, bool gets_gradient);
  /// All of them, when all are there.
  void set_model_order(const std::vector<Trained>& all);
  /// In parameters(), of one by its index in the graph.
  std::size_t place_of(int index) const { return places_.at(index); }

  enum class Pass { forward, backward };
  /// Before the whole model's forward.
  void begin();
  /// Ranks compare the order that was recorded. DeepSpeed does it when the next forward begins; a step that had but one
  /// does it at its end here, as all later steps are to be alike.
  void end_recording();
  /// Around a module.
  void fetch(const Submodule& module, Pass pass);
  void release(const Submodule& module, Pass pass);
  /// `module` looks at a parameter of another one. Where that is parted it is gathered, and is the module's, too, from
  /// then on (parameter_offload.py: ZeROOrderedDict).
  void reach(const Submodule& module, int parameter);
  /// After backward: of modules whose backward isn't seen to end, as their input has no gradient.
  void release_leftovers();
  /// Before the optimizer's step.
  void release_all();
  /// After it: those that stay whole.
  void gather_persistent();
  /// When autograd's graph is gone that had some of them from the step before. Python has those made since and lets go
  /// of these; here it is the other way around, as a program must leave the same buffers after each step.
  void forget_graph();
  /// The same as a forward gathers them, for a model that has no step.
  void gather_for_good();
  /// One, on its own (param.all_gather()), and as if it had never been.
  void gather_alone(PartedParameter& parameter);
  void let_go(PartedParameter& parameter);

 private:
  struct Use {
    std::size_t parameter = 0;
    std::int64_t step = 0;
  };
  enum class Trace { none, recording, complete };

  void clear_gathers();
  bool is_next(const Submodule& module) const;
  void invalidate();
  void compare_over_ranks(std::int64_t numbers);
  std::vector<std::size_t> own(const Submodule& module) const;
  void gather(std::vector<std::size_t> parameters);
  std::vector<Arrival> by_type(const std::vector<std::size_t>& parameters) const;
  /// Of several ranks. `is_alone`: nothing else is gathered with the only one.
  void start(Arrival& arrival, bool is_alone);
  Tensor on_card(const PartedParameter& parameter, Stream stream);
  Tensor make_for_whole(const PartedParameter& parameter);
  void gather_into(const Tensor& whole, const Tensor& part);
  /// `stream` goes on once the other of compute and the one that gathers has done what it was given.
  void wait_on(Stream stream);
  /// What is copied out of what arrived is made on `stream`.
  void wait_for(Gather& gather, Stream stream);
  void wait_for(Arrival& arrival, Stream stream);
  void make_whole(PartedParameter& parameter, Tensor whole);
  void release_one(PartedParameter& parameter);
  void take_from_queue(const std::vector<std::size_t>& needed);
  void prefetch();
  const std::set<std::size_t>& to_release(const Submodule& module);
  bool comes_soon(std::size_t place) const;
  std::set<std::size_t> take_recomputed(const Submodule& module);

  Torch& torch_;
  std::int64_t ranks_;
  Zero3Sizes sizes_;
  Stream stream_;
  bool offloads_;
  std::vector<PartedParameter> parameters_;
  std::map<int, std::size_t> places_;  // by index in the graph
  std::vector<std::size_t> in_model_order_;
  std::map<std::string, std::set<std::size_t>> reached_;  // by module, of other ones
  Trace trace_ = Trace::none;
  std::vector<Submodule> modules_;                   // in the order in which they were entered
  std::vector<std::vector<std::size_t>> order_;      // their parameters, of the recorded order
  std::vector<std::int64_t> before_;                 // elements of the parameters of the modules before each
  std::vector<std::vector<std::int64_t>> steps_of_;  // by parameter: where the order has it
  std::deque<Use> queue_;
  std::int64_t step_ = 0, available_ = 0, gathers_ = 0;
  std::vector<Submodule> in_backward_;  // in the order in which they began
  /// Frozen ones that a checkpoint gathered, by the module whose backward had begun last. It lets go of them
  /// (ds_recompute_parameters).
  std::map<std::string, std::set<std::size_t>> recomputed_;
  /// By module and step, for good (functools.lru_cache around __params_to_release).
  std::map<std::pair<std::string, std::int64_t>, std::set<std::size_t>> releases_;
};

}  // namespace vramfit::eager
