#include "executor/agreement.h"

#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include <functional>

namespace vramfit {

namespace {

std::string hash_of(const std::string& text) { return fmt::format("{:016x}", std::hash<std::string>{}(text)); }

/// Flags that name what is read, and what makes the ranks work together: checkpoints, and dumps, which are gathered.
std::string shared_files(const RunOptions& options) {
  std::string text;
  for (const std::string& path : options.data) text += path + ";";
  const SaveFlags& save = options.save;
  const DumpOptions& dumps = options.dumps;
  text += fmt::format("{};{};", options.weights, options.token_bytes);
  text += fmt::format("{};{};{};{};{};", save.directory, save.every, save.keep, save.full, save.resume);
  text += fmt::format("{};{};{};{}", dumps.directory, dumps.gradients_step, dumps.logits, dumps.parameters);
  return text;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> train_facts(const TrainOptions& train) {
  const auto& [steps, warmup, optimizer, clip, seed] = train;
  const auto& [learning_rate, beta1, beta2, eps, weight_decay] = optimizer;
  return {{"--seed", fmt::format("{}", seed)},
          {"--steps", fmt::format("{}", steps)},
          {"--warmup", fmt::format("{}", warmup)},
          {"--lr", fmt::format("{}", learning_rate)},
          {"--clip", fmt::format("{}", clip)},
          {"--beta1", fmt::format("{}", beta1)},
          {"--beta2", fmt::format("{}", beta2)},
          {"--eps", fmt::format("{}", eps)},
          {"--weight-decay", fmt::format("{}", weight_decay)}};
}

std::string agreement(const std::string& plan_text, const RunOptions& options, DeviceKind device) {
  std::string flags = shared_files(options);
  for (const auto& [flag, value] : train_facts(options.train)) flags += fmt::format(";{} {}", flag, value);
  const std::string program = "vramfit " VRAMFIT_VERSION ", LibTorch " TORCH_VERSION;
  return fmt::format("plan {}, flags {}, {} ranks, program {}", hash_of(plan_text), hash_of(flags),
                     device == DeviceKind::cpu ? "CPU" : "CUDA", hash_of(program));
}

}  // namespace vramfit
