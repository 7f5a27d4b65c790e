#include "job/stacks/torchtune.h"

#include <algorithm>
#include <array>

namespace vramfit {

namespace {

constexpr std::array kBuilders{
    TorchtuneBuilder{"llama2", "llama2_13b", "meta-llama/Llama-2-13b-hf", "llama", 32000, 40, 5120, 13824, 4096},
    TorchtuneBuilder{"llama2", "llama2_70b", "meta-llama/Llama-2-70b-hf", "llama", 32000, 80, 8192, 28672, 4096},
    TorchtuneBuilder{"llama2", "llama2_7b", "meta-llama/Llama-2-7b-hf", "llama", 32000, 32, 4096, 11008, 4096},
    TorchtuneBuilder{"code_llama2", "code_llama2_13b", "codellama/CodeLlama-13b-hf", "llama", 32016, 40, 5120, 13824,
                     16384},
    TorchtuneBuilder{"code_llama2", "code_llama2_70b", "codellama/CodeLlama-70b-hf", "llama", 32016, 80, 8192, 28672,
                     16384},
    TorchtuneBuilder{"code_llama2", "code_llama2_7b", "codellama/CodeLlama-7b-hf", "llama", 32016, 32, 4096, 11008,
                     16384},
    TorchtuneBuilder{"llama3", "llama3_70b", "meta-llama/Meta-Llama-3-70B", "llama", 128256, 80, 8192, 28672, 8192},
    TorchtuneBuilder{"llama3", "llama3_8b", "meta-llama/Meta-Llama-3-8B", "llama", 128256, 32, 4096, 14336, 8192},
    TorchtuneBuilder{"llama3_1", "llama3_1_405b", "meta-llama/Llama-3.1-405B", "llama", 128256, 126, 16384, 53248,
                     131072},
    TorchtuneBuilder{"llama3_1", "llama3_1_70b", "meta-llama/Llama-3.1-70B", "llama", 128256, 80, 8192, 28672, 131072},
    TorchtuneBuilder{"llama3_1", "llama3_1_8b", "meta-llama/Llama-3.1-8B", "llama", 128256, 32, 4096, 14336, 131072},
    TorchtuneBuilder{"llama3_2", "llama3_2_1b", "meta-llama/Llama-3.2-1B", "llama", 128256, 16, 2048, 8192, 131072},
    TorchtuneBuilder{"llama3_2", "llama3_2_3b", "meta-llama/Llama-3.2-3B", "llama", 128256, 28, 3072, 8192, 131072},
    TorchtuneBuilder{"llama3_3", "llama3_3_70b", "meta-llama/Llama-3.3-70B-Instruct", "llama", 128256, 80, 8192, 28672,
                     131072},
    TorchtuneBuilder{"mistral", "mistral_7b", "mistralai/Mistral-7B-v0.1", "mistral", 32000, 32, 4096, 14336, 32768},
    TorchtuneBuilder{"qwen2", "qwen2_0_5b", "Qwen/Qwen2-0.5B", "qwen2", 151936, 24, 896, 4864, 32768},
    TorchtuneBuilder{"qwen2", "qwen2_1_5b", "Qwen/Qwen2-1.5B", "qwen2", 151936, 28, 1536, 8960, 32768},
    TorchtuneBuilder{"qwen2", "qwen2_7b", "Qwen/Qwen2-7B", "qwen2", 152064, 28, 3584, 18944, 32768},
    TorchtuneBuilder{"qwen2_5", "qwen2_5_0_5b", "Qwen/Qwen2.5-0.5B", "qwen2", 151936, 24, 896, 4864, 32768},
    TorchtuneBuilder{"qwen2_5", "qwen2_5_14b_base", "Qwen/Qwen2.5-14B", "qwen2", 152064, 48, 5120, 13824, 131072},
    TorchtuneBuilder{"qwen2_5", "qwen2_5_14b_instruct", "Qwen/Qwen2.5-14B-Instruct", "qwen2", 152064, 48, 5120, 13824,
                     32768},
    TorchtuneBuilder{"qwen2_5", "qwen2_5_1_5b_base", "Qwen/Qwen2.5-1.5B", "qwen2", 151936, 28, 1536, 8960, 131072},
    TorchtuneBuilder{"qwen2_5", "qwen2_5_1_5b_instruct", "Qwen/Qwen2.5-1.5B-Instruct", "qwen2", 151936, 28, 1536, 8960,
                     32768},
    TorchtuneBuilder{"qwen2_5", "qwen2_5_32b_base", "Qwen/Qwen2.5-32B", "qwen2", 152064, 64, 5120, 27648, 131072},
    TorchtuneBuilder{"qwen2_5", "qwen2_5_32b_instruct", "Qwen/Qwen2.5-32B-Instruct", "qwen2", 152064, 64, 5120, 27648,
                     32768},
    TorchtuneBuilder{"qwen2_5", "qwen2_5_3b", "Qwen/Qwen2.5-3B", "qwen2", 151936, 36, 2048, 11008, 32768},
    TorchtuneBuilder{"qwen2_5", "qwen2_5_72b_base", "Qwen/Qwen2.5-72B", "qwen2", 152064, 80, 8192, 29568, 131072},
    TorchtuneBuilder{"qwen2_5", "qwen2_5_72b_instruct", "Qwen/Qwen2.5-72B-Instruct", "qwen2", 152064, 80, 8192, 29568,
                     32768},
    TorchtuneBuilder{"qwen2_5", "qwen2_5_7b_base", "Qwen/Qwen2.5-7B", "qwen2", 152064, 28, 3584, 18944, 131072},
    TorchtuneBuilder{"qwen2_5", "qwen2_5_7b_instruct", "Qwen/Qwen2.5-7B-Instruct", "qwen2", 152064, 28, 3584, 18944,
                     32768},
    TorchtuneBuilder{"gemma", "gemma_2b", "google/gemma-2b", "gemma", 256000, 18, 2048, 16384, 8192},
    TorchtuneBuilder{"gemma", "gemma_7b", "google/gemma-7b", "gemma", 256000, 28, 3072, 24576, 8192},
    TorchtuneBuilder{"gemma2", "gemma2_27b", "google/gemma-2-27b", "gemma2", 256000, 46, 4608, 36864, 8192},
    TorchtuneBuilder{"gemma2", "gemma2_2b", "google/gemma-2-2b", "gemma2", 256000, 26, 2304, 9216, 8192},
    TorchtuneBuilder{"gemma2", "gemma2_9b", "google/gemma-2-9b", "gemma2", 256000, 42, 3584, 14336, 8192},
    TorchtuneBuilder{"phi3", "phi3_mini", "microsoft/Phi-3-mini-4k-instruct", "phi3", 32064, 32, 3072, 8192, 4096},
    TorchtuneBuilder{"phi4", "phi4_14b", "microsoft/phi-4", "phi3", 100352, 40, 5120, 17920, 16384},
};

/// Llama 3 and 3.1 differ in their rotations alone.
bool is_scaled(const TorchtuneBuilder& builder) { return builder.package.starts_with("llama3_"); }

bool has_shape_of(const TorchtuneBuilder& builder, const ModelSpec& spec) {
  return spec.model_type == builder.model_type && spec.vocab_size == builder.vocabulary &&
         spec.num_hidden_layers == builder.layers && spec.hidden_size == builder.hidden &&
         spec.intermediate_size == builder.ffn && (spec.rope.scaling == Rope::Scaling::llama3) == is_scaled(builder);
}

}  // namespace

std::span<const TorchtuneBuilder> torchtune_builders() { return kBuilders; }

const TorchtuneBuilder* torchtune_builder_of(const ModelSpec& spec) {
  const auto* const same = std::ranges::find(kBuilders, spec.name, &TorchtuneBuilder::model);
  if (same != kBuilders.end() && has_shape_of(*same, spec)) return same;
  const TorchtuneBuilder* longest = nullptr;
  for (const TorchtuneBuilder& builder : kBuilders) {
    if (!has_shape_of(builder, spec)) continue;
    if (longest == nullptr || builder.max_seq_len > longest->max_seq_len) longest = &builder;
  }
  return longest;
}

}  // namespace vramfit
