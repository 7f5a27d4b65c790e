// The jobs on which prediction and measurement are held against each other: a pairwise cover over tables, so that a new
// row of any of them joins by itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vramfit::testing {

/// One job of the cover, as flags of `vramfit run`.
struct CoverJob {
  std::string family;
  int ranks = 1;
  std::vector<std::string> flags;  // "--sharding", "full-shard", ...
  std::string name() const;
};

/// At least `minimum` jobs; the same for the same seed.
std::vector<CoverJob> cover(std::uint64_t seed, std::size_t minimum);

/// Values of axes: the families that the engine runs, those of kShardings, and the list of optimizers.
std::vector<std::string> runnable_families();
std::vector<std::string> sharding_names();
std::vector<std::string> listed_optimizers();

/// Whether an optimizer takes parameters stored as such a precision stores them.
bool can_update(const std::string& optimizer, const std::string& precision);

/// Whether an optimizer keeps states in `state`, a value of --state-dtype ("": not set), beside such parameters.
bool can_keep_states(const std::string& optimizer, const std::string& precision, const std::string& state);

/// In turn, forms of an optimizer: where a job's optimizer has several and the job can have them.
class FormsInTurn {
 public:
  std::string next(const std::string& optimizer, const std::string& precision, const std::string& state,
                   const std::string& offload);

 private:
  std::size_t turn_ = 0;
};

/// Flags that store a job's parameters in fp16 (--storage-dtype), in every second job that can have them; and no axis
/// of its own, which would draw all others anew.
class HalfInTurn {
 public:
  struct Job {
    const std::string &optimizer, &state, &master_dtype;
    bool updates_in_backward;
  };
  std::vector<std::string> next(const Job& job);

 private:
  bool turn_ = false;
};

/// In turn, flags that keep a job's gradients in another dtype than its parameters (--gradient-dtype), in three of four
/// jobs that can have one; and no axis of its own, as above.
class GradientsInTurn {
 public:
  struct Job {
    const std::string &optimizer, &precision, &gradient_dtype;
    bool is_half, updates_in_backward;  // whether its parameters are stored in fp16
  };
  std::vector<std::string> next(const Job& job);

 private:
  std::size_t turn_ = 0;
};

/// Values of --offload that the engine has rules for, and whether it has them for such a job.
std::vector<std::string> offload_kinds();
bool can_offload(const std::string& optimizer, const std::string& offload, const std::string& ranks,
                 const std::string& sharding);
bool can_offload(const std::string& offload, const std::string& ranks, const std::string& sharding, bool is_masked,
                 bool from_rank0);

/// What of a job may contradict an update within backward, as values of axes.
struct NeedsAllGradients {
  std::string grad_accum, gradient_mask, offload, loss_scale, precision, reduce_dtype;
};
bool can_update_in_backward(const NeedsAllGradients& job);

/// A value of --method with one of another flag, and whether such adapters go with the rest: norms are of matrices that
/// stay as they are.
inline constexpr const char* kDora = "lora, --dora on";
bool can_adapt(const std::string& method, const std::string& dropout, const std::string& freeze);
/// Whether a job has gradients that --gradient-dtype fp8 keeps, and nothing that needs them in another form.
bool can_keep_fp8_gradients(const std::string& method, const std::string& gradient_mask, const std::string& offload);
/// Whether a job that is to send them has ranks to send them to.
bool can_send_fp8_gradients(const std::string& gradient_dtype, int ranks, const std::string& sharding);
/// Whether a job trains matrices that --master-dtype fp16 keeps, and nothing needs them in another form.
bool can_scale_masters(const std::string& method, const std::string& precision, const std::string& offload,
                       bool from_rank0);
/// Adds a flag and its value, or what kDora stands for; of no value, nothing.
void add_flag(std::vector<std::string>& flags, const std::string& flag, const std::string& value);

struct Quantized {
  const std::string &quantization, &method, &freeze, &offload;
};
/// Whether a job freezes matrices of layers, as --quantization wants, or of fp8 has the masters of those that it trains
/// in host memory, and each rank reads its own rows.
bool can_quantize(const Quantized& job, bool from_rank0);

/// tests/models/FAMILY.json
std::string model_path(const std::string& family);

}  // namespace vramfit::testing
