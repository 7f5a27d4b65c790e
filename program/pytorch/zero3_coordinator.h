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

#include "job/zero3_sizes.h"
#include "program/pytorch/torch.h"
#include "program/pytorch/wrapper.h"

namespace vramfit::eager {

/// What one collective gathers: several parameters arrive in one tensor, and each is copied out of it.
struct Gather {
  std::vector<std::size_t> parameters;
  Tensor flat;       // empty: one parameter, which stays where it arrives
  Tensor sent = {};  // of one parameter whose part is in host memory: its copy, until the gather is done
  int token = -1;
  bool is_complete = false;
};

/// A parameter of which each rank has a part.
struct PartedParameter {
  Trained* trained = nullptr;
  std::int64_t part_elements = 0;  // with the padding
  bool is_persistent = false;      // stays whole until the optimizer's step
  Tensor part;                     // this rank's, of a flat tensor; with offload_param in host memory
  enum class Status { parted, on_its_way, whole } status = Status::parted;
  Tensor whole;
  std::shared_ptr<Gather> gather;     // while it is on its way, or nobody has waited for it
  std::set<std::string> used_by;      // modules that run
  std::int64_t fetched_for_step = 0;  // the last place in the order that it was gathered for
};

class Zero3Coordinator {
 public:
  /// `dtype`: of the parameters, bf16 or fp16. `stream`: that gathers, all_gather or with overlap_comm off compute.
  /// `offloads`: parts are in host memory.
  Zero3Coordinator(Torch& torch, std::int64_t ranks, Dtype dtype, Zero3Sizes sizes, Stream stream, bool offloads);

  /// In the order of the model's parameters.
  std::vector<PartedParameter>& parameters() { return parameters_; }
  const std::vector<PartedParameter>& parameters() const { return parameters_; }
  void add(Trained& trained);
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
  /// After backward: of modules whose backward isn't seen to end, as their input has no gradient.
  void release_leftovers();
  /// Before the optimizer's step.
  void release_all();
  /// After it: those that stay whole.
  void gather_persistent();
  /// One, on its own (param.all_gather()), and as if it had never been.
  void gather_alone(PartedParameter& parameter);
  void let_go(PartedParameter& parameter);

 private:
  struct Use {
    std::size_t parameter = 0;
    std::int64_t step = 0;
  };
  enum class Trace { none, recording, complete };

  void compare_over_ranks(std::int64_t numbers);
  std::vector<std::size_t> own(const Submodule& module) const;
  void gather(std::vector<std::size_t> parameters);
  /// Of several ranks; `part_elements`: this rank's.
  void start(Gather& gather, std::int64_t part_elements);
  Tensor on_card(const PartedParameter& parameter, Stream stream);
  Tensor make_for_whole(const PartedParameter& parameter);
  void gather_into(const Tensor& whole, const Tensor& part);
  /// `stream` goes on once the other of compute and the one that gathers has done what it was given.
  void wait_on(Stream stream);
  void wait_for(Gather& gather);
  void make_whole(PartedParameter& parameter, Tensor whole);
  void release_one(PartedParameter& parameter);
  void take_from_queue(const std::vector<std::size_t>& needed);
  void prefetch();
  const std::set<std::size_t>& to_release(const Submodule& module);

  Torch& torch_;
  std::int64_t ranks_;
  Dtype dtype_;
  Zero3Sizes sizes_;
  Stream stream_;
  bool offloads_;
  std::vector<PartedParameter> parameters_;
  std::map<int, std::size_t> places_;  // by index in the graph
  Trace trace_ = Trace::none;
  std::vector<std::vector<std::size_t>> order_;  // parameters of each module that was entered
  std::deque<Use> queue_;
  std::int64_t step_ = 0, available_ = 0;
  std::vector<Submodule> in_backward_;  // in the order in which they began
  /// By module and step, for good (functools.lru_cache around __params_to_release).
  std::map<std::pair<std::string, std::int64_t>, std::set<std::size_t>> releases_;
};

}  // namespace vramfit::eager
