#include "job/fields/job_field_words.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <span>

#include <fmt/format.h>

namespace vramfit {

namespace {

struct Word {
  std::string_view field, said, meant;
};

// Of transformers, accelerate, Lightning, DeepSpeed, torchtune and torchtitan, in lower case with '-' for '_'.
constexpr std::array kWords{
    Word{"runtime", "ddp", "pytorch-ddp"},
    Word{"runtime", "fsdp1", "pytorch-fsdp1"},
    Word{"runtime", "fsdp", "pytorch-fsdp2"},
    Word{"runtime", "fsdp2", "pytorch-fsdp2"},
    Word{"precision", "fp16", "fp16-mixed"},
    Word{"precision", "float16", "fp16-mixed"},
    Word{"precision", "half", "fp16-mixed"},
    Word{"precision", "16-mixed", "fp16-mixed"},
    Word{"precision", "bf16", "bf16-mixed"},
    Word{"precision", "bfloat16", "bf16-mixed"},
    Word{"precision", "bf16-true", "bf16-pure"},
    Word{"precision", "pure-bf16", "bf16-pure"},
    Word{"precision", "float32", "fp32"},
    Word{"precision", "32", "fp32"},
    Word{"precision", "32-true", "fp32"},
    Word{"precision", "no", "fp32"},
    Word{"precision", "float8", "fp8"},
    Word{"attention", "flash-attention-2", "flash-attn"},
    Word{"attention", "flash-attention", "flash"},
    Word{"attention", "flash-attn-2", "flash-attn"},
    Word{"attention", "fa2", "flash-attn"},
    Word{"attention", "sdpa", "auto"},
    Word{"attention", "eager", "math"},
    Word{"attention", "mem-efficient", "efficient"},
    Word{"attention", "memory-efficient", "efficient"},
    Word{"attention", "xformers", "efficient"},
    Word{"checkpointing", "on", "full"},
    Word{"checkpointing", "true", "full"},
    Word{"checkpointing", "yes", "full"},
    Word{"checkpointing", "off", "none"},
    Word{"checkpointing", "false", "none"},
    Word{"checkpointing", "no", "none"},
    Word{"sharding", "ddp", "no-shard"},
    Word{"sharding", "0", "no-shard"},
    Word{"sharding", "zero0", "no-shard"},
    Word{"sharding", "1", "shard-optimizer"},
    Word{"sharding", "zero1", "shard-optimizer"},
    Word{"sharding", "zero-1", "shard-optimizer"},
    Word{"sharding", "2", "shard-grad-op"},
    Word{"sharding", "zero2", "shard-grad-op"},
    Word{"sharding", "zero-2", "shard-grad-op"},
    Word{"sharding", "3", "full-shard"},
    Word{"sharding", "zero3", "full-shard"},
    Word{"sharding", "zero-3", "full-shard"},
    Word{"sharding", "fsdp", "full-shard"},
    Word{"sharding", "hsdp", "hybrid-shard"},
    Word{"optimizer", "adamw-torch-fused", "adamw:fused"},
    Word{"optimizer", "adamw-fused", "adamw:fused"},
    Word{"optimizer", "adamw-torch", "adamw:foreach"},
    Word{"optimizer", "adamw-bnb-8bit", "adamw-8bit:fused"},
    Word{"optimizer", "adamw-torch-8bit", "adamw-8bit:torchao"},
    Word{"optimizer", "adamw-torch-4bit", "adamw-4bit:torchao"},
    Word{"optimizer", "paged-adamw-8bit", "adamw-8bit:paged"},
    Word{"optimizer", "pagedadamw8bit", "adamw-8bit:paged"},
    Word{"optimizer", "paged-adamw-32bit", "adamw:paged"},
    Word{"optimizer", "paged-adamw", "adamw:paged"},
    Word{"optimizer", "pagedadamw32bit", "adamw:paged"},
    Word{"optimizer", "pagedadamw", "adamw:paged"},
    Word{"optimizer", "adamw8bit", "adamw-8bit:fused"},
    Word{"optimizer", "adamw4bit", "adamw-4bit:fused"},
    Word{"optimizer", "fused", "adamw:fused"},
    Word{"optimizer", "foreach", "adamw:foreach"},
    Word{"optimizer", "loop", "adamw:loop"},
    Word{"loss", "chunked", "chunked:8"},
    Word{"allocator", "expandable-segments", "expandable"},
    Word{"allocator", "default", "native"},
    Word{"method", "full-finetuning", "full"},
    Word{"method", "sft", "full"},
};

// Of every toggle.
constexpr std::array kToggleWords{Word{"", "true", "on"},   Word{"", "yes", "on"}, Word{"", "1", "on"},
                                  Word{"", "false", "off"}, Word{"", "no", "off"}, Word{"", "0", "off"}};

std::string_view meant_by(std::span<const Word> words, std::string_view field, const std::string& said) {
  const auto found =
      std::ranges::find_if(words, [&](const Word& word) { return word.field == field && word.said == said; });
  return found == words.end() ? std::string_view{} : found->meant;
}

/// Whether `value` is one of "full|lora|qlora".
bool is_listed(std::string_view values, std::string_view value) {
  while (true) {
    const std::size_t bar = values.find('|');
    if (values.substr(0, bar) == value) return true;
    if (bar == std::string_view::npos) return false;
    values.remove_prefix(bar + 1);
  }
}

/// "8k" is 8192, and "1M" 1048576: lengths and batches come in powers of two. Unchanged when it is no such number.
std::string without_unit(std::string_view value) {
  constexpr std::int64_t kThousand = 1024, kMost = std::int64_t{1} << 40;
  const char unit = value.size() < 2 ? '0' : value.back();
  const bool is_thousands = unit == 'k' || unit == 'K', is_millions = unit == 'm' || unit == 'M';
  if (!is_thousands && !is_millions) return std::string(value);
  std::int64_t count = 0;
  const char* const end = value.data() + value.size() - 1;
  const auto [stop, error] = std::from_chars(value.data(), end, count);
  if (error != std::errc{} || stop != end || count < 1 || count > kMost) return std::string(value);
  return fmt::to_string(count * (is_millions ? kThousand * kThousand : kThousand));
}

}  // namespace

std::string folded_word(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(),
                         [](unsigned char c) { return c == '_' ? '-' : static_cast<char>(std::tolower(c)); });
  return result;
}

std::string as_known_value(const JobField& field, std::string_view value) {
  if (field.form == FieldForm::integer) return without_unit(value);
  constexpr std::size_t kLongestWord = 40;
  if (value.size() > kLongestWord || is_listed(field.values, value)) return std::string(value);
  const std::string word = folded_word(value);
  if (is_listed(field.values, word)) return word;
  const std::string_view meant =
      field.form == FieldForm::toggle ? meant_by(kToggleWords, "", word) : meant_by(kWords, field.name, word);
  return meant.empty() ? std::string(value) : std::string(meant);
}

}  // namespace vramfit
