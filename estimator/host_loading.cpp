#include "estimator/host_loading.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "job/parameters/quantization.h"
#include "program/stages/adapters.h"
#include "program/stages/trainable.h"

namespace vramfit {
namespace {

bool is_expert(const Parameter& parameter) { return parameter.name.find(".experts.") != std::string::npos; }

bool has_copy_on_each_gpu(const Job& job) { return job.runtime == Runtime::pytorch; }

bool has_parts_from_the_start(const Job& job) {
  return job.runtime == Runtime::deepspeed && job.sharding == "full-shard";
}

/// A second model of the same weights that is on the host beside the first: TRL makes it when the Trainer has moved the
/// first one to its card, unless that waits for FSDP or DeepSpeed.
bool has_reference_beside(const Job& job) {
  const bool has_second =
      job.modeling == Modeling::trl_dpo || (job.modeling == Modeling::trl_grpo && job.grpo.has_reference);
  return has_second && job.method == Method::full && !has_copy_on_each_gpu(job);
}

/// Where create_model_from_path of TRL (1.16) has device_map="auto", which is with a single process; where bitsandbytes
/// quantizes, unless the script says that it be done on the host, as FSDP2 needs it.
bool loads_to_gpu(const Job& job) {
  if (has_parts_from_the_start(job)) return true;
  if (job.method == Method::qlora) return job.runtime != Runtime::pytorch_fsdp2;
  return has_trl(job) && has_copy_on_each_gpu(job) && job.mesh.shard * job.mesh.replicate == 1;
}

Bytes whole_bytes(const Parameter& parameter, const HeldParameter& held) {
  if (held.quantization == nullptr) return element_count(parameter) * dtype_bytes(held.dtype);
  const std::int64_t rows = parameter.shape.front();
  return quantized_bytes(*held.quantization, rows, element_count(parameter) / rows);
}

/// transformers' from_pretrained (5.23, core_model_loading.py: _materialize_copy): a slice of a mapped file, converted
/// if its type is another. Experts, which files have one by one, are put together in new memory, gates and ups of a
/// layer last of all in a third tensor. Every rank does so, with cpu_ram_efficient_loading too: this version leaves out
/// none. accelerate's FSDP2 then makes trained weights fp32 on the host, and holds all of them until all are sharded
/// (utils/fsdp_utils.py: fsdp2_prepare_model, original_sd).
class FromPretrained {
 public:
  FromPretrained(const ModelSpec& spec, const Graph& graph, const Job& job)
      : graph_(graph), job_(job), stored_(spec.stored_dtype), held_(held_parameters(graph, job)) {
    read();
  }

  HostLoading loading() const {
    HostLoading found;
    if (loads_to_gpu(job_)) return found;
    found.adapters = adapters_;
    found.ends_first = job_.runtime == Runtime::deepspeed;
    found.copies = copies_ + largest_expert_;
    if (has_reference_beside(job_)) found.copies = found.copies + copies_;
    if (found.copies.n > 0) found.what = what();
    return found;
  }

 private:
  void read() {
    const std::vector<bool> is_adapter = adapter_parameters(graph_);
    for (std::size_t i = 0; i < held_.size(); ++i) {
      const Parameter& parameter = graph_.parameters[i];
      // DeepSpeed converts what was loaded to the type that is computed in, after PEFT has made adapters in fp32.
      if (job_.runtime == Runtime::deepspeed) held_[i].dtype = is_adapter[i] ? Dtype::f32 : job_.precision.compute;
      const Bytes bytes = whole_bytes(parameter, held_[i]);
      if (is_adapter[i]) {
        adapters_ += bytes;
      } else if (is_expert(parameter)) {
        copies_ += bytes;
        largest_expert_ = std::max(largest_expert_, bytes);
      } else if (held_[i].quantization != nullptr || held_[i].dtype != stored_) {
        copies_ += bytes;
        converted_ = held_[i].quantization != nullptr ? converted_ : held_[i].dtype;
        is_quantized_ = is_quantized_ || held_[i].quantization != nullptr;
      }
    }
  }

  std::string what() const {
    std::string text = is_quantized_ ? "quantized weights"
                       : converted_ == stored_
                           ? "experts put together"
                           : fmt::format("weights in {} ({} in the file)", dtype_name(converted_), dtype_name(stored_));
    if (has_reference_beside(job_)) text += ", and the reference's";
    return text;
  }

  const Graph& graph_;
  const Job& job_;
  Dtype stored_;
  std::vector<HeldParameter> held_;
  Dtype converted_ = stored_;
  bool is_quantized_ = false;
  Bytes copies_, largest_expert_, adapters_;
};

/// torchtune 0.6.1: each rank maps the files, and of most families turns queries' and keys' rows into another order, in
/// new memory (models/convert_weights.py: hf_to_tune). With several ranks all tensors are converted before the first is
/// sent, if their type is another (training/_distributed.py: load_from_full_model_state_dict), but for those in 4 bits.
HostLoading of_torchtune(const ModelSpec& spec, const Graph& graph, const Job& job) {
  const bool turns_rows = spec.model_type != "qwen2" && spec.model_type != "phi3";
  const Dtype stored = spec.stored_dtype;
  const bool converts = job.runtime == Runtime::pytorch_fsdp2 && job.method != Method::qlora;
  const std::vector<HeldParameter> held = held_parameters(graph, job);
  const std::vector<bool> is_adapter = adapter_parameters(graph);
  Bytes turned, converted;
  Dtype other = stored;
  for (std::size_t i = 0; i < held.size(); ++i) {
    const Parameter& parameter = graph.parameters[i];
    if (is_adapter[i]) continue;
    const bool is_turned = parameter.name.ends_with("q_proj.weight") || parameter.name.ends_with("k_proj.weight");
    if (turns_rows && is_turned) turned += element_count(parameter) * dtype_bytes(stored);
    if (!converts || held[i].dtype == stored) continue;
    converted += element_count(parameter) * dtype_bytes(held[i].dtype);
    other = held[i].dtype;
  }
  HostLoading found;
  found.copies = std::max(turned, converted);
  if (converted > turned) {
    found.what = fmt::format("weights in {} ({} in the file)", dtype_name(other), dtype_name(stored));
  } else if (turned.n > 0) {
    found.what = "queries' and keys' matrices in torchtune's order";
  }
  return found;
}

/// What nobody but the script decides, or nobody has looked at.
std::string unknown_of(const ModelSpec& spec, const Graph& graph, const Job& job) {
  if (is_torchtitan(job)) return "of a checkpoint that torchtitan reads";
  if (job.modeling == Modeling::torchtune) return "";
  if (!spec.quantization.empty()) return "of weights that are dequantized";
  if (has_experts(graph) && job.runtime == Runtime::deepspeed) return "of experts under DeepSpeed";
  // The job says what DeepSpeed and FSDP1 make of weights on the card, and not what they were loaded in.
  if (job.runtime == Runtime::pytorch_fsdp1) return "of weights that are loaded in another type than the file's";
  if (job.runtime == Runtime::deepspeed && has_trl(job) && !has_parts_from_the_start(job) &&
      job.method != Method::qlora) {
    return "of weights in fp32, TRL's default (4 bytes each, on each rank), if model_init_kwargs have no dtype";
  }
  return "";
}

}  // namespace

HostLoading host_loading(const ModelSpec& spec, const Graph& graph, const Job& job) {
  if (job.runtime == Runtime::vramfit) return {};
  HostLoading found;
  if (job.modeling == Modeling::torchtune) {
    found = of_torchtune(spec, graph, job);
  } else if (!is_torchtitan(job) && job.runtime != Runtime::pytorch_fsdp1) {
    found = FromPretrained(spec, graph, job).loading();
  }
  found.unknown = unknown_of(spec, graph, job);
  return found;
}

}  // namespace vramfit
