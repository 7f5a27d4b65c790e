#include "tests/support/random_jobs.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"
#include "job/fields/job_fields.h"
#include "tests/support/config_file.h"
#include "tests/support/shard.h"

namespace vramfit::testing {

namespace {

using Random = std::mt19937_64;
using Words = std::vector<std::string>;

struct Choice {
  const char* field;
  Words values;
};

const Words kOwnDevices{"cuda:75:40",   "cuda:80:108",  "cuda:86:84", "cuda:89:128", "cuda:90:132",
                        "cuda:100:148", "cuda:120:170", "cpu:1:1",    "cpu:2:1",     "cpu:2:0"};
const Words kTorchDevices{"cuda:80:108", "cuda:89:128", "cuda:90:132"};
const Words kShapes{"1x1", "1x2", "1x3", "1x4", "1x8", "2x2", "2x8", "8x8"};
const Words kLarge{"llama-3.1-8b", "llama-3.2-1b", "qwen3-8b",         "gemma-2-9b",   "gemma-3-1b",
                   "gpt2-xl",      "phi-3-mini",   "bert-large-cased", "llama-3.1-70b"};
const Words kTorchModels{"llama", "llama/5", "llama-3.1-8b", "llama-3.1-70b"};

const std::vector<Choice> kOwn{
    {"sharding", {"no-shard", "shard-grad-op", "full-shard", "hybrid-shard", "hybrid-shard-zero2"}},
    {"reshard", {"default", "last-kept", "always", "never", "2", "4"}},
    {"checkpointing",
     {"none", "full", "every:2", "every:3", "selective", "selective:glu,linear/3", "budget:0%", "budget:60%"}},
    {"precision", {"fp32", "bf16-mixed", "bf16-pure", "fp16-mixed", "fp8"}},
    {"storage_dtype", {"fp32", "bf16", "fp16"}},
    {"reduce_dtype", {"fp32", "bf16", "fp16"}},
    {"buffer_dtype", {"fp32", "bf16"}},
    {"output_dtype", {"fp32"}},
    {"loss_scale", {"auto", "none", "1024", "dynamic:1024:10"}},
    {"loss", {"full", "chunked:2", "chunked:3", "chunked:8", "chunked-forward:3"}},
    {"accumulate", {"sharded", "unsharded"}},
    {"bucket_bytes", {"26214400", "2000", "1000000"}},
    {"freeze", {"none", "layers:0", "*att*", "layers:0,embeddings", "head", "embeddings", "*.weight", "layers:1"}},
    {"frozen_dtype", {"fp32", "bf16", "fp16"}},
    {"quantization", {"none", "nf4", "nf4-double", "int8", "fp8"}},
    {"gradient_mask", {"none", "keep:0.4"}},
    {"method", {"full", "lora", "lora", "qlora"}},
    {"dora", {"off", "on"}},
    {"wrap",
     {"layer", "layers:2", "layers:3", "none", "size:1", "size:6000", "size:18000", "size:50000000",
      "pattern:*att*n*,*.1", "pattern:*mlp*"}},
    {"wrap_embeddings", {"on", "off"}},
    {"prefetch",
     {"backward=post,forward=1", "backward=pre,forward=2", "backward=none,forward=0", "backward=post,forward=3,limit=2",
      "backward=pre,forward=1,limit=1"}},
    {"reduce_finish", {"early", "end"}},
    {"reshard_head", {"on", "off"}},
    {"deterministic", {"on", "off"}},
    {"attention", {"auto", "math", "flash", "efficient"}},
    {"load", {"each", "rank0"}},
    {"offload",
     {"none", "optimizer", "optimizer+gradients", "params", "activations", "activations:every:2",
      "optimizer,activations", "params,activations"}},
    {"seq_len", {"17", "32", "128"}},
    {"micro_batch", {"1", "2", "3"}},
    {"grad_accum", {"1", "2", "3", "4", "5", "6", "7"}},
    {"clip", {"off"}},
    {"optimizer_in_backward", {"off", "on"}},
    {"label_smoothing", {"0", "0.1"}},
    {"z_loss", {"0", "1e-4"}},
    {"gradient_dtype", {"fp8", "fp8-sent", "fp32", "bf16", "fp16"}},
    {"master_dtype", {"fp16"}},
    {"allocator", {"gradients-first"}},
};

const std::vector<Choice> kTorch{
    {"reshard", {"default", "last-kept", "always", "never"}},
    {"checkpointing", {"none", "full", "every:2", "selective"}},
    {"optimizer", {"adamw:fused", "adamw:foreach"}},
    {"sharding", {"full-shard", "hybrid-shard", "shard-grad-op"}},
    {"attention", {"flash", "auto"}},
    {"seq_len", {"32", "128", "2048"}},
    {"micro_batch", {"1", "2"}},
    {"grad_accum", {"1", "2", "3", "7"}},
    {"wrap", {"layer", "layers:2", "layers:3"}},
    {"wrap_embeddings", {"on", "off"}},
    {"clip", {"off"}},
};

const std::string& pick(const Words& values, Random& random) { return values[random() % values.size()]; }

bool happens(int in_a_hundred, Random& random) { return random() % 100 < static_cast<std::uint64_t>(in_a_hundred); }

std::string own_model(Random& random) {
  if (happens(10, random)) return pick(kLarge, random);
  const std::string& name = pick(small_models(), random);
  return happens(50, random) ? name : name + "/" + std::to_string(1 + random() % 7);
}

bool is_refused(const JobLine& line, const Property& property, std::string& failure) {
  try {
    failure = property(resolved(line));
    return false;
  } catch (const InputError&) {
    return true;
  } catch (const NotModelled&) {
    return true;
  } catch (const std::exception& error) {
    failure = error.what();
    return false;
  }
}

std::string described(const JobLine& line, const std::string& failure) {
  return failure + "\n  job: " + text_of(line) + "\n  flags: " + job_as_flags(resolved(line).job, unresolved_job());
}

/// Smaller values of the three things that every line has.
std::vector<JobLine> smaller_places(const JobLine& line) {
  std::vector<JobLine> smaller;
  const auto try_with = [&](std::string JobLine::*part, const Words& values) {
    for (const std::string& value : values) {
      if (line.*part == value) return;  // those before it are smaller
      smaller.push_back(line);
      smaller.back().*part = value;
    }
  };
  try_with(&JobLine::model, {"llama/1", "llama/2", "llama/3", "llama"});
  try_with(&JobLine::shape, {"1x1", "1x2", "1x3", "1x4", "2x2", "1x8"});
  try_with(&JobLine::device, {"cpu:1:1", "cuda:80:108"});
  const std::size_t slash = line.model.find('/');
  if (slash == std::string::npos) return smaller;
  for (int layers = 1; layers < std::stoi(line.model.substr(slash + 1)); ++layers) {
    smaller.push_back(line);
    smaller.back().model = line.model.substr(0, slash + 1) + std::to_string(layers);
  }
  return smaller;
}

std::vector<JobLine> smaller_lines(const JobLine& line) {
  std::vector<JobLine> smaller;
  for (std::size_t i = 0; i < line.settings.size(); ++i) {
    smaller.push_back(line);
    smaller.back().settings.erase(smaller.back().settings.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (std::size_t i = 0; i < line.settings.size(); ++i) {
    if (line.settings[i].first != "grad_accum") continue;
    for (int times = 2; times < std::stoi(line.settings[i].second); ++times) {
      smaller.push_back(line);
      smaller.back().settings[i].second = std::to_string(times);
    }
  }
  for (JobLine& place : smaller_places(line)) smaller.push_back(std::move(place));
  return smaller;
}

/// Drops what contradicts an update within backward: by chance few lines would have none of it.
void let_update_in_backward(JobLine& line) {
  const std::pair<std::string, std::string> on{"optimizer_in_backward", "on"};
  if (std::ranges::find(line.settings, on) == line.settings.end()) return;
  std::erase_if(line.settings, [](const auto& setting) {
    return setting.first == "grad_accum" || setting.first == "gradient_mask" || setting.first == "offload" ||
           setting.first == "clip";
  });
  line.settings.emplace_back("clip", "off");
}

}  // namespace

JobLine draw_job(std::uint64_t seed) {
  Random random(seed);
  const bool is_own = random() % 6 != 0;
  JobLine line{.model = is_own ? own_model(random) : pick(kTorchModels, random),
               .shape = pick(kShapes, random),
               .device = pick(is_own ? kOwnDevices : kTorchDevices, random),
               .settings = {}};
  if (!is_own) {
    const bool is_one = random() % 3 == 0;
    if (is_one) line.shape = "1x1";
    line.settings = {{"runtime", is_one ? "pytorch" : "pytorch-fsdp2"}, {"modeling", "torchtitan"}};
    if (is_one) line.settings.emplace_back("precision", "bf16-pure");
  }
  const int share = std::vector<int>{15, 30, 50}[random() % 3];
  for (const Choice& choice : is_own ? kOwn : kTorch) {
    if (happens(share, random)) line.settings.emplace_back(choice.field, pick(choice.values, random));
  }
  let_update_in_backward(line);
  return line;
}

JobLine smallest_failing(JobLine line, const std::function<bool(const JobLine&)>& fails) {
  for (bool is_smaller = true; is_smaller;) {
    is_smaller = false;
    for (const JobLine& smaller : smaller_lines(line)) {
      if (!fails(smaller)) continue;
      line = smaller;
      is_smaller = true;
      break;
    }
  }
  return line;
}

Trial try_random_jobs(int jobs, std::uint64_t first_seed, const Property& property) {
  Trial trial;
  const int mine = jobs / static_cast<int>(current_shard().count);
  for (std::uint64_t seed = first_seed; trial.jobs < mine; ++seed) {
    if (!is_mine(seed)) continue;
    const JobLine line = draw_job(seed);
    std::string failure;
    if (is_refused(line, property, failure)) {
      ++trial.refused;
      continue;
    }
    ++trial.jobs;
    if (failure.empty()) continue;
    const auto fails = [&](const JobLine& smaller) {
      std::string why;
      return !is_refused(smaller, property, why) && !why.empty();
    };
    const JobLine smallest = smallest_failing(line, fails);
    (void)is_refused(smallest, property, failure);
    trial.failure = described(smallest, failure);
    return trial;
  }
  return trial;
}

}  // namespace vramfit::testing
