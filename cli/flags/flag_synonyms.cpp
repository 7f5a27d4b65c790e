#include "cli/flags/flag_synonyms.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string_view>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/text/suggest.h"
#include "job/fields/job_field_words.h"
#include "job/sharding/fsdp_strategies.h"

namespace vramfit {
namespace {

/// `value` "": the word is another name of `flag`, whose value follows. Else it is a switch for that value, and for
/// `off` where it is off; "" then says nothing. `beside` is said with what the word is read as.
struct Synonym {
  std::string_view word, flag, value = "", off = "", beside = "";
};

constexpr std::string_view kOfWeights =
    ", not as the dtype in which weights are loaded: that is --storage-dtype and --state-dtype, of frozen weights "
    "--frozen-dtype; bf16 is autocast (bf16-mixed), without which it is bf16-pure";
constexpr std::string_view kOfZero =
    ", which is DeepSpeed's ZeRO only with --stack deepspeed or trl-deepspeed, and otherwise FSDP2's or the engine's";

// Names of transformers' TrainingArguments, trl, torchtune, torchtitan, DeepSpeed, Megatron and Lightning. Two flags
// for one word: the first that the command has.
constexpr std::array kSynonyms{
    Synonym{"--activation-checkpointing", "--checkpointing", "full", "none"},
    Synonym{"--attention-implementation", "--attention"},
    Synonym{"--attn", "--attention"},
    Synonym{"--attn-implementation", "--attention"},
    Synonym{"--batch", "--micro-batch"},
    Synonym{"--batch-size", "--micro-batch"},
    Synonym{"--bf16", "--precision", "bf16-mixed"},
    Synonym{"--block-size", "--seq-len"},
    Synonym{"--cards", "--gpus"},
    Synonym{"--cluster", "--gpus"},
    Synonym{"--context-length", "--seq-len"},
    Synonym{"--dataset", "--data"},
    Synonym{"--ddp", "--sharding", "no-shard"},
    Synonym{"--dtype", "--precision", "", "", kOfWeights},
    Synonym{"--enable-liger-kernel", "--kernels", "liger", "libtorch"},
    Synonym{"--flash-attention", "--attention", "flash"},
    Synonym{"--flash-attn", "--attention", "flash-attn"},
    Synonym{"--fp16", "--precision", "fp16-mixed"},
    Synonym{"--fp32", "--precision", "fp32"},
    Synonym{"--fp8", "--precision", "fp8"},
    Synonym{"--fsdp", "--sharding", "full-shard"},
    Synonym{"--global-batch-size", "--global-batch"},
    Synonym{"--gpu", "--gpus"},
    Synonym{"--grad-accum-steps", "--grad-accum"},
    Synonym{"--gradient-accumulation", "--grad-accum"},
    Synonym{"--gradient-accumulation-steps", "--grad-accum"},
    Synonym{"--gradient-checkpointing", "--checkpointing", "full", "none"},
    Synonym{"--gradient-clipping", "--clip"},
    Synonym{"--learning-rate", "--lr"},
    Synonym{"--liger", "--kernels", "liger", "libtorch"},
    Synonym{"--load-in-4bit", "--method", "qlora"},
    Synonym{"--load-in-8bit", "--quantization", "int8"},
    Synonym{"--lora", "--method", "lora"},
    Synonym{"--lora-r", "--lora-rank"},
    Synonym{"--max-grad-norm", "--clip"},
    Synonym{"--max-length", "--seq-len"},
    Synonym{"--max-seq-len", "--seq-len"},
    Synonym{"--max-seq-length", "--seq-len"},
    Synonym{"--max-steps", "--steps"},
    Synonym{"--micro-batch-size", "--micro-batch"},
    Synonym{"--mixed-precision", "--precision"},
    Synonym{"--no-gradient-checkpointing", "--checkpointing", "none"},
    Synonym{"--optim", "--optimizer"},
    Synonym{"--per-device-batch-size", "--micro-batch"},
    Synonym{"--per-device-train-batch-size", "--micro-batch"},
    Synonym{"--qlora", "--method", "qlora"},
    Synonym{"--recompute", "--checkpointing", "full", "none"},
    Synonym{"--resume-from-checkpoint", "--resume"},
    Synonym{"--save-steps", "--save-every"},
    Synonym{"--save-total-limit", "--keep"},
    Synonym{"--seq-length", "--seq-len"},
    Synonym{"--sequence-length", "--seq-len"},
    Synonym{"--sharding-strategy", "--sharding"},
    Synonym{"--torch-dtype", "--precision", "", "", kOfWeights},
    Synonym{"--train-batch-size", "--global-batch"},
    Synonym{"--train-micro-batch-size-per-gpu", "--micro-batch"},
    Synonym{"--training-steps", "--steps"},
    Synonym{"--use-liger", "--kernels", "liger", "libtorch"},
    Synonym{"--use-liger-kernel", "--kernels", "liger", "libtorch"},
    Synonym{"--use-peft", "--method", "lora"},
    Synonym{"--warmup-steps", "--warmup"},
    Synonym{"--zero", "--sharding", "", "", kOfZero},
    Synonym{"--zero1", "--sharding", "shard-optimizer", "", kOfZero},
    Synonym{"--zero2", "--sharding", "shard-grad-op", "", kOfZero},
    Synonym{"--zero3", "--sharding", "full-shard", "", kOfZero},
    Synonym{"--zero-stage", "--sharding", "", "", kOfZero},
};

struct Hint {
  std::string_view word, says;
};
constexpr std::string_view kPacking =
    "every row is taken as full: --seq-len is its length, and --micro-batch how many a GPU has at once; where rows are "
    "packed documents of which each sees itself alone, --packing bfd says so";
constexpr std::string_view kOtherParallelism =
    "there are no rules for tensor, pipeline, context and expert parallelism; your own script with them is answered by "
    "\"vramfit rehearse --gpus CLUSTER -- CMD\"";
constexpr std::array kHints{
    Hint{"--sample-packing", kPacking},
    Hint{"--neat-packing", kPacking},
    Hint{"--tensor-parallel", kOtherParallelism},
    Hint{"--tensor-parallel-size", kOtherParallelism},
    Hint{"--tensor-model-parallel-size", kOtherParallelism},
    Hint{"--tp", kOtherParallelism},
    Hint{"--tp-size", kOtherParallelism},
    Hint{"--pipeline-parallel", kOtherParallelism},
    Hint{"--pipeline-parallel-size", kOtherParallelism},
    Hint{"--pipeline-model-parallel-size", kOtherParallelism},
    Hint{"--pp", kOtherParallelism},
    Hint{"--pp-size", kOtherParallelism},
    Hint{"--context-parallel", kOtherParallelism},
    Hint{"--context-parallel-size", kOtherParallelism},
    Hint{"--cp", kOtherParallelism},
    Hint{"--cp-size", kOtherParallelism},
    Hint{"--sequence-parallel", kOtherParallelism},
    Hint{"--sp", kOtherParallelism},
    Hint{"--sp-size", kOtherParallelism},
    Hint{"--expert-parallel", kOtherParallelism},
    Hint{"--expert-parallel-size", kOtherParallelism},
    Hint{"--expert-model-parallel-size", kOtherParallelism},
    Hint{"--ep", kOtherParallelism},
    Hint{"--ep-size", kOtherParallelism},
    Hint{"--deepspeed", "DeepSpeed's stacks are --stack deepspeed and trl-deepspeed; a configuration is --job FILE"},
    Hint{"--unsloth", "Unsloth's kernels are not modelled"},
    Hint{"--torch-compile", "torch.compile is not modelled; \"vramfit rehearse --gpus CLUSTER -- CMD\" answers"},
};

bool has_flag(const CLI::App& command, std::string_view flag) {
  return command.get_option_no_throw(std::string(flag)) != nullptr;
}

/// Whether the flag is one of those that are on or off.
bool is_toggle(const CLI::App& command, const std::string& flag) {
  const CLI::Option* const option = command.get_option_no_throw(flag);
  return option != nullptr && option->get_type_name() == "on|off";
}

std::optional<bool> as_switch(std::string_view word) {
  std::string folded(word);
  std::ranges::transform(folded, folded.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (folded == "true" || folded == "on" || folded == "yes" || folded == "1") return true;
  if (folded == "false" || folded == "off" || folded == "no" || folded == "0") return false;
  return std::nullopt;
}

/// What a switch with this value says; nothing when it is off and that says nothing. A value that is no switch is one
/// of the flag's own:
/// --activation-checkpointing=selective.
std::optional<std::string> said_by_switch(const Synonym& row, const std::string& value) {
  const std::optional<bool> is_on = as_switch(value);
  if (is_on == false) return row.off.empty() ? std::nullopt : std::optional(std::string(row.off));
  return is_on ? std::string(row.value) : value;
}

/// The flags that a value of --fsdp stands for. transformers' takes words: a strategy, without which it is
/// --sharding full-shard, auto_wrap, which is how the Trainer wraps anyway, and offload. None where a word is no such
/// word. Case doesn't matter, nor does '-' for '_'.
std::vector<std::pair<std::string_view, std::string_view>> fsdp_flags(std::string_view value) {
  std::vector<std::pair<std::string_view, std::string_view>> flags;
  bool has_strategy = false;
  while (true) {
    const std::size_t end = value.find_first_of(" ,");
    const std::string word = folded_word(value.substr(0, end));
    if (const auto* const known = std::ranges::find(kFsdpStrategies, word); known != kFsdpStrategies.end()) {
      flags.emplace_back("--sharding", *known);
      has_strategy = true;
    } else if (word == "offload") {
      flags.emplace_back("--offload", "params");
    } else if (!word.empty() && word != "auto-wrap") {
      return {};
    }
    if (end == std::string_view::npos) break;
    value.remove_prefix(end + 1);
  }
  if (!has_strategy) flags.emplace(flags.begin(), "--sharding", "full-shard");
  return flags;
}

const Synonym* meant_by(const CLI::App& command, std::string_view name) {
  const auto* const found = std::ranges::find_if(
      kSynonyms, [&](const Synonym& row) { return row.word == name && has_flag(command, row.flag); });
  return found == kSynonyms.end() ? nullptr : found;
}

/// One command line on its way through the table.
class Reader {
 public:
  Reader(const CLI::App& command, const std::vector<std::string>& words, std::vector<std::string>& notes)
      : command_(command), words_(words), notes_(notes) {}

  std::vector<std::string> read() {
    for (at_ = 0; at_ < words_.size() && words_[at_] != "--"; ++at_) read_word(words_[at_]);
    known_.insert(known_.end(), words_.begin() + static_cast<std::ptrdiff_t>(at_), words_.end());
    return std::move(known_);
  }

 private:
  void read_word(const std::string& word) {
    const std::size_t equals = std::min(word.find('='), word.size());
    std::string name = word.substr(0, equals);
    if (!name.starts_with("--") || (has_flag(command_, name) && !is_toggle(command_, name))) {
      known_.push_back(word);
      return;
    }
    std::ranges::replace(name, '_', '-');
    if (is_toggle(command_, name)) return toggle(name, word.substr(equals));
    if (name == "--fsdp" && meant_by(command_, name) != nullptr && read_fsdp(word.substr(equals))) return;
    const Synonym* synonym = has_flag(command_, name) ? nullptr : meant_by(command_, name);
    if (synonym == nullptr) {
      known_.push_back((has_flag(command_, name) ? name : word.substr(0, equals)) + word.substr(equals));
    } else if (synonym->value.empty()) {
      known_.push_back(std::string(synonym->flag) + word.substr(equals));
      say(name, fmt::format("{}{}", synonym->flag, synonym->beside));
    } else {
      turn_on(*synonym, name, equals < word.size() ? std::optional(word.substr(equals + 1)) : std::nullopt);
    }
  }

  /// "--compile", "--compile on" and "--compile=on" are one; the word behind is MODEL where it is no on or off.
  void toggle(const std::string& name, const std::string& joined) {
    const bool is_next = joined.empty() && at_ + 1 < words_.size();
    if (is_next && words_[at_ + 1].empty()) return known_.push_back(name);  // which is refused by this name
    std::string value = joined.empty() ? "on" : joined.substr(1);
    if (is_next && as_switch(words_[at_ + 1])) value = words_[++at_];
    if (const std::optional<bool> is_on = as_switch(value)) value = *is_on ? "on" : "off";
    known_.push_back(fmt::format("{}={}", name, value));
  }

  /// "--fsdp full_shard", "--fsdp 'full_shard auto_wrap'". Returns whether a value follows that is of such words.
  bool read_fsdp(const std::string& joined) {
    const bool is_next = joined.empty() && at_ + 1 < words_.size();
    const std::string value = is_next ? words_[at_ + 1] : joined.substr(std::min<std::size_t>(1, joined.size()));
    if (value.empty()) return false;
    const auto flags = fsdp_flags(value);
    if (flags.empty()) return false;
    if (is_next) ++at_;
    std::string meant;
    for (const auto& [flag, said] : flags) {
      known_.push_back(fmt::format("{}={}", flag, said));
      meant += fmt::format("{}{} {}", meant.empty() ? "" : " ", flag, said);
    }
    say(fmt::format("--fsdp {}", value), meant);
    return true;
  }

  /// "--bf16", "--bf16 true", "--bf16=false": off means that nothing was said.
  void turn_on(const Synonym& synonym, const std::string& name, std::optional<std::string> value) {
    if (!value && at_ + 1 < words_.size() && as_switch(words_[at_ + 1])) value = words_[++at_];
    const std::optional<std::string> wanted = said_by_switch(synonym, value.value_or("on"));
    if (!wanted) return;
    say(name, fmt::format("{} {}{}", synonym.flag, *wanted, synonym.beside));
    if (synonym.flag == "--method" && method_at_) {  // --use_peft --load_in_4bit are QLoRA
      if (*wanted == "qlora") known_[*method_at_] = "--method=qlora";
      return;
    }
    known_.push_back(fmt::format("{}={}", synonym.flag, *wanted));
    if (synonym.flag == "--method") method_at_ = known_.size() - 1;
  }

  void say(const std::string& name, const std::string& meant) {
    notes_.push_back(fmt::format("{} is read as {}", printable(name), printable(meant)));
  }

  const CLI::App& command_;
  const std::vector<std::string>& words_;
  std::vector<std::string>& notes_;
  std::vector<std::string> known_;
  std::size_t at_ = 0;
  std::optional<std::size_t> method_at_;  // of known_: what a switch said
};

}  // namespace

std::vector<std::string> with_known_flags(const CLI::App& command, const std::vector<std::string>& words,
                                          std::vector<std::string>& notes) {
  return Reader(command, words, notes).read();
}

std::string hint_for_flag(std::string word) {
  std::ranges::replace(word, '_', '-');
  const auto* const row = std::ranges::find(kHints, word, &Hint::word);
  return row == kHints.end() ? "" : fmt::format("; {}", row->says);
}

std::optional<KnownSetting> known_setting(std::string key, const std::string& value) {
  std::ranges::replace(key, '_', '-');
  const auto* const row = std::ranges::find(kSynonyms, "--" + key, &Synonym::word);
  if (row == kSynonyms.end()) return std::nullopt;
  const std::string field(row->flag.substr(2));
  if (row->value.empty()) return KnownSetting{field, value};
  const std::optional<std::string> wanted = said_by_switch(*row, value);
  return wanted ? std::optional(KnownSetting{field, *wanted}) : std::nullopt;
}

}  // namespace vramfit
