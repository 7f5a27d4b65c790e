#include "cli/configs/tools/axolotl_kernels.h"

#include <string>

#include <fmt/format.h>

#include "job/fields/kernels_text.h"

namespace vramfit {
namespace {

std::string key_of(const AxolotlPart& part) { return fmt::format("lora_{}_kernel", part.name); }
std::string fact_of(const AxolotlPart& part) { return fmt::format("axolotl's kernel of {}", part.name); }

}  // namespace

/// Any of them, whatever its value, keeps axolotl from switching all on.
void read_adapter_kernel(const Setting& setting, Draft& draft) {
  draft.derive(fact::kAdapterKernels, "said");
  const bool is_on = setting.flag();
  for (const AxolotlPart& part : axolotl_parts()) {
    if (setting.key != key_of(part)) continue;
    draft.set(fact_of(part), is_on ? "on" : "off", setting,
              is_on ? fmt::format("its kernel of {}, of --kernels axolotl", part.name) : "PEFT's linears");
    return;
  }
  draft.understand(setting, "no adapters on embeddings have rules here");
}

void read_remote_code(const Setting& setting, Draft& draft) {
  if (setting.flag()) draft.derive(fact::kRemoteCode, "on");
  draft.ignore(setting, "which model class");
}

/// check_auto_enable_lora_kernels, which leaves FSDP1, 8 bits and preference training out.
void finish_adapter_kernels(const ConfigNode& root, Draft& draft) {
  if (!draft.is(fact::kLora, "on")) return;
  const bool is_fsdp1 = draft.is(fact::kParallel, "fsdp") && draft.is(fact::kFsdpVersion, "1");
  const ConfigNode* const preference = find_in(root, "rl");
  const bool has_preference = preference != nullptr && !preference->is_null();
  const bool is_remote = draft.is(fact::kRemoteCode, "on"), is_in_8_bits = draft.is(fact::kBits, "8");
  if (!draft.has(fact::kAdapterKernels) && !is_in_8_bits && !is_fsdp1 && !is_remote && !has_preference) {
    draft.assume(fact::kOwnKernels, "axolotl",
                 "axolotl switches its kernels for adapters on where none of lora_mlp_kernel, lora_qkv_kernel, "
                 "lora_o_kernel and lora_embedding_kernel is set");
    return;
  }
  Job job;
  for (const AxolotlPart& part : axolotl_parts()) job.axolotl.*part.value = draft.is(fact_of(part), "on");
  if (!job.axolotl.any()) return;
  if (is_remote) {  // schemas/validation.py: check_lora_kernels_trust_remote_code
    draft.not_modelled(
        "lora_*_kernel: true with trust_remote_code: true, which axolotl refuses; leave one of both out");
  }
  draft.derive(fact::kOwnKernels, get_kernels(job));
}

void add_adapter_kernels(Draft& draft) {
  const auto own = draft.get(fact::kOwnKernels), others = draft.get("kernels");
  if (!own) return;
  draft.forget("kernels");
  draft.derive("kernels", others ? fmt::format("{}+{}", *others, *own) : *own);
}

}  // namespace vramfit
