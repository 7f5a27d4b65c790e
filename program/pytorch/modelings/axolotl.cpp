#include "program/pytorch/modelings/axolotl.h"

#include <algorithm>
#include <initializer_list>
#include <string>

#include <fmt/format.h>

#include "base/conflict.h"
#include "base/error.h"
#include "job/fields/job_fields.h"
#include "job/sharding/sharding.h"
#include "program/pytorch/modelings/segment_reader.h"

namespace vramfit::eager {

namespace {

bool are_adapted(std::initializer_list<const LinearParameters*> linears) {
  return std::ranges::all_of(linears, [](const LinearParameters* each) { return each->lora_a >= 0; });
}

/// Those that PEFT computes are modules of FSDP2's there, which convert what they are passed.
void require_all_adapters(const LlamaGraph& llama, const AxolotlParts& parts) {
  const auto is_left = [](bool is_on, std::initializer_list<const LinearParameters*> linears) {
    return !is_on && std::ranges::any_of(linears, [](const LinearParameters* each) { return each->lora_a >= 0; });
  };
  for (const LlamaBlock& l : llama.blocks) {
    if (!is_left(parts.mlp, {&l.gate, &l.up, &l.down}) && !is_left(parts.qkv, {&l.q, &l.k, &l.v}) &&
        !is_left(parts.o, {&l.o})) {
      continue;
    }
    throw NotModelled(
        "--kernels axolotl with FSDP2 and adapters that they don't compute (--lora-targets all-linear with all parts "
        "is)");
  }
}

}  // namespace

void require_axolotl_kernels(const Job& job) {
  if (!job.axolotl.any()) return;
  const auto refuse = [](const std::string& what, const char* instead) {
    throw NotModelled(fmt::format("--kernels axolotl with {} ({})", what, instead));
  };
  if (job.modeling != Modeling::transformers) {
    refuse(fmt::format("--modeling {}", job_field_named("modeling").get(job)), "--stack transformers has them");
  }
  const bool is_whole = job.runtime == Runtime::pytorch;
  const bool is_zero = job.runtime == Runtime::deepspeed && !sharding_named(job.sharding).reshard;
  if (!is_whole && !is_zero && job.runtime != Runtime::pytorch_fsdp2) {
    refuse(fmt::format("--runtime {} and --sharding {}", job_field_named("runtime").get(job), job.sharding),
           "on one GPU, with DDP, with FSDP2 and with ZeRO-1 and ZeRO-2 they are");
  }
  if (job.lora.has_magnitudes) refuse("--dora on", "without it they are");
}

/// A part whose linears don't all have adapters stays PEFT's. Each function multiplies in place with adapters in its
/// input's dtype, which autocast leaves alone: with an input in fp32 the first one fails.
AxolotlParts axolotl_kernels(const Job& job, const LlamaGraph& llama, Dtype hidden) {
  AxolotlParts parts = job.axolotl;
  if (!parts.any()) return parts;
  require_axolotl_kernels(job);
  const LlamaStyle& style = llama.style;
  if (style.has_experts || style.has_sinks) refuse_model(job, "experts, with --kernels axolotl");
  if (style.is_packed) {
    throw LibraryFails(
        "--kernels axolotl with a model whose queries, keys and values are one linear: axolotl refuses it (leave it "
        "out)");
  }
  if (hidden != job.precision.compute) {
    throw LibraryFails(fmt::format(
        "--kernels axolotl with hidden states in {} and products in {}, which they can't add in place (--frozen-dtype "
        "{})",
        dtype_name(hidden), dtype_name(job.precision.compute), dtype_name(job.precision.compute)));
  }
  const auto all = [&](const auto& is_adapted) { return std::ranges::all_of(llama.blocks, is_adapted); };
  parts.mlp = parts.mlp && all([](const LlamaBlock& l) { return are_adapted({&l.gate, &l.up, &l.down}); });
  parts.qkv = parts.qkv && all([](const LlamaBlock& l) { return are_adapted({&l.q, &l.k, &l.v}); });
  parts.o = parts.o && all([](const LlamaBlock& l) { return are_adapted({&l.o}); });
  if (job.runtime == Runtime::pytorch_fsdp2) require_all_adapters(llama, parts);
  return parts;
}

}  // namespace vramfit::eager
