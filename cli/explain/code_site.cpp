#include "cli/explain/code_site.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/text/suggest.h"

namespace vramfit {
namespace {

/// A frame that tells the phase: its file contains `file`, and its function is `function`; "" is any.
struct Sign {
  std::string_view file, function;
  Phase phase;
};

// The names are those of torch 2.0 to 2.15, transformers 4.40 to 5, TRL, accelerate, DeepSpeed and bitsandbytes.
constexpr std::array kSigns{
    Sign{"", "backward", Phase::backward},
    Sign{"torch/autograd/", "_engine_run_backward", Phase::backward},
    Sign{"torch/autograd/", "grad", Phase::backward},
    Sign{"torch/optim/", "", Phase::optimizer},
    Sign{"bitsandbytes/optim/", "", Phase::optimizer},
    Sign{"torchao/optim/", "", Phase::optimizer},
    Sign{"apex/optimizers/", "", Phase::optimizer},
    Sign{"deepspeed/ops/adam/", "", Phase::optimizer},
    Sign{"deepspeed/runtime/", "step", Phase::optimizer},
    Sign{"", "clip_grad_norm_", Phase::clip},
    Sign{"torch/nn/utils/clip_grad.py", "", Phase::clip},
    Sign{"", "from_pretrained", Phase::load},
    Sign{"torch/serialization.py", "load", Phase::load},
    Sign{"transformers/core_model_loading.py", "", Phase::load},
    Sign{"transformers/modeling_utils.py", "_load_state_dict_into_meta_model", Phase::load},
    Sign{"torch/nn/modules/module.py", "_apply", Phase::load},
    Sign{"torch/nn/modules/module.py", "to", Phase::load},
    Sign{"torch/nn/modules/module.py", "cuda", Phase::load},
    Sign{"torch/nn/modules/", "__init__", Phase::load},
    Sign{"torch/nn/parallel/distributed.py", "__init__", Phase::load},
    Sign{"torch/distributed/fsdp/", "__init__", Phase::load},
    Sign{"torch/distributed/fsdp/", "fully_shard", Phase::load},
    Sign{"deepspeed/runtime/zero/partition_parameters.py", "", Phase::load},
    Sign{"torch/nn/modules/loss.py", "", Phase::loss},
    Sign{"torch/nn/functional.py", "cross_entropy", Phase::loss},
    Sign{"transformers/loss/", "", Phase::loss},
    Sign{"cross_entropy", "", Phase::loss},  // files of fused ones
    Sign{"", "compute_loss", Phase::loss},
    Sign{"torch/nn/modules/module.py", "_call_impl", Phase::forward},
    Sign{"torch/nn/modules/module.py", "_wrapped_call_impl", Phase::forward},
    Sign{"", "forward", Phase::forward},
    Sign{"torch/utils/checkpoint.py", "", Phase::forward},  // within backward: computed again
    Sign{"", "evaluation_loop", Phase::evaluation},
    Sign{"", "prediction_step", Phase::evaluation},
    Sign{"", "validation_step", Phase::evaluation},
    Sign{"transformers/generation/", "", Phase::evaluation},
    Sign{"", "save_checkpoint", Phase::checkpoint_save},
    Sign{"", "_save_checkpoint", Phase::checkpoint_save},
    Sign{"", "save_pretrained", Phase::checkpoint_save},
    Sign{"", "get_model_state_dict", Phase::checkpoint_save},
};

constexpr std::string_view kEngine = "torch::autograd::Engine";  // of a C++ frame
constexpr std::array<std::string_view, 2> kPackages{"/site-packages/", "/dist-packages/"};

bool is_python(const CodeFrame& frame) { return frame.file.ends_with(".py") || frame.file.starts_with('<'); }

std::size_t package_begin(std::string_view file) {
  for (const std::string_view mark : kPackages) {
    const std::size_t at = file.rfind(mark);
    if (at != std::string_view::npos) return at + mark.size();
  }
  return std::string_view::npos;
}

bool is_library(std::string_view file) {
  return package_begin(file) != std::string_view::npos || file.starts_with('<') ||
         file.find("/lib/python3") != std::string_view::npos;
}

bool is_torch(std::string_view file) {
  const std::size_t begin = package_begin(file);
  return begin != std::string_view::npos && file.substr(begin).starts_with("torch/");
}

std::optional<Phase> phase_of(const CodeFrame& frame) {
  if (frame.function.find(kEngine) != std::string_view::npos) return Phase::backward;
  if (!is_python(frame)) return std::nullopt;
  for (const Sign& sign : kSigns) {
    if (frame.file.find(sign.file) != std::string_view::npos &&
        (sign.function.empty() || frame.function == sign.function)) {
      return sign.phase;
    }
  }
  return std::nullopt;
}

CodePlace kept(const CodeFrame& frame) {
  const std::size_t begin = package_begin(frame.file);
  const std::string_view file = begin == std::string_view::npos ? frame.file : frame.file.substr(begin);
  return {.file = std::string(file), .function = std::string(frame.function), .line = frame.line};
}

/// What backward, evaluation and saving call is theirs; otherwise the innermost sign counts, since an optimizer's step
/// may be given a closure. An update within backward is the optimizer's.
void add_phase(CodeSite& site, std::optional<Phase> phase) {
  if (!phase) return;
  const auto is = [&](Phase outer) { return site.phase == outer; };
  if (is(Phase::backward) && *phase != Phase::optimizer) {
    site.recomputes = site.recomputes || *phase == Phase::forward;
    return;
  }
  if (is(Phase::evaluation) || is(Phase::checkpoint_save)) return;
  if (is(Phase::loss) && *phase == Phase::forward) {  // a module that computes the loss has a forward of its own
    site.phase = Phase::forward;
    return;
  }
  if (is(Phase::load) && *phase == Phase::forward) return;
  site.phase = phase;
}

/// The innermost frame of Python of which `is_wanted` holds.
template <typename IsWanted>
std::optional<CodePlace> innermost(std::span<const ReadFrame> frames, const IsWanted& is_wanted) {
  for (std::size_t i = frames.size(); i-- > 0;) {
    if (frames[i].is_python && is_wanted(frames[i])) return kept(frames[i].frame);
  }
  return std::nullopt;
}

}  // namespace

ReadFrame read_frame(const CodeFrame& frame) {
  return {.frame = frame,
          .phase = phase_of(frame),
          .is_python = is_python(frame),
          .is_library = is_library(frame.file),
          .is_torch = is_torch(frame.file)};
}

CodeSite site_of(std::span<const ReadFrame> frames) {
  CodeSite site;
  for (const ReadFrame& each : frames) add_phase(site, each.phase);
  site.own = innermost(frames, [](const ReadFrame& each) { return !each.is_library; });
  site.library = innermost(frames, [](const ReadFrame& each) {
    return each.is_library && !each.is_torch && package_begin(each.frame.file) != std::string_view::npos;
  });
  site.innermost = innermost(frames, [](const ReadFrame&) { return true; });
  site.place =
      innermost(frames, [](const ReadFrame& each) { return !each.is_torch && !each.frame.file.starts_with('<'); });
  if (!site.place) site.place = site.innermost;
  return site;
}

std::string place_text(const CodePlace& place) {
  return fmt::format("{}:{} in {}", printable(place.file), place.line, printable(place.function, 100));
}

std::string phase_text(const CodeSite& site) {
  if (!site.phase) return "";
  return fmt::format("{}{}", phase_name(*site.phase), site.recomputes ? " (activations computed again)" : "");
}

}  // namespace vramfit
