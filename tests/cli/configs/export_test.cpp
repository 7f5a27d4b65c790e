// A plan as another tool's configuration: what is written comes back as the same job, and nothing is dropped in
// silence.
#include "cli/configs/export/export.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/configs/import.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "job/sharding/sharding.h"
#include "job/stacks/stacks.h"
#include "model_specs/catalog.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

using Random = std::mt19937_64;

struct Drawn {
  std::string field;
  std::vector<std::string> values;  // "" leaves it open
};

// What people choose, values that some tools lack among it.
const std::vector<Drawn> kDrawn{
    {"method", {"full", "full", "lora", "qlora"}},
    {"precision", {"bf16-mixed", "bf16-mixed", "bf16-pure", "fp32", "fp16-mixed", "fp8"}},
    {"storage_dtype", {"", "", "bf16"}},
    {"state_dtype", {"", "", "bf16"}},
    {"sharding", {"full-shard", "full-shard", "shard-grad-op", "no-shard", "hybrid-shard", "hybrid-shard-zero2"}},
    {"reshard", {"", "", "last-kept", "always", "never"}},
    {"wrap", {"layer", "layer", "layers:2", "none", "size:2000000", "pattern:layers.*"}},
    {"wrap_embeddings", {"on", "off"}},
    {"checkpointing", {"none", "full", "every:2", "selective", "budget:50%"}},
    {"offload", {"none", "none", "params", "optimizer", "optimizer+gradients"}},
    {"optimizer",
     {"adamw:fused", "adamw:fused", "adamw:foreach", "adamw-8bit:fused", "adamw-4bit:torchao", "adafactor:fused",
      "lion:fused"}},
    {"optimizer_in_backward", {"off", "off", "off", "on"}},
    {"loss", {"full", "chunked:4"}},
    {"attention", {"auto", "flash", "math", "efficient", "flash-attn"}},
    {"allocator", {"expandable", "native"}},
    {"frozen_dtype", {"", "", "fp32", "bf16"}},
    {"quantization", {"", "", "nf4", "nf4-double", "int8"}},
    {"seq_len", {"512", "4096"}},
    {"micro_batch", {"1", "2", "3"}},
    {"grad_accum", {"1", "4"}},
};
const std::vector<Drawn> kAdapters{
    {"lora_rank", {"8", "64"}},
    {"lora_alpha", {"16", "7.5"}},
    {"lora_dropout", {"", "0.05", "1e-05"}},
    {"lora_targets", {"", "q_proj,v_proj", "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj", "down_proj"}},
    {"rslora", {"", "", "on"}},
    {"dora", {"", "", "", "on"}},
};

// DeepSpeed's runtime brings defaults, so it comes before what is drawn for all.
const std::vector<Drawn> kDeepSpeed{{"runtime", {"deepspeed"}}, {"modeling", {"transformers", "trl", "trl-dpo"}}};
const std::vector<Drawn> kOfDeepSpeed{
    {"sharding", {"shard-optimizer", "shard-grad-op", "shard-grad-op", "full-shard", "no-shard"}},
    {"bucket_bytes", {"", "", "40000000", "100002", "100003"}},
    {"overlap_comm", {"", "off", "on"}},
    {"zero3_sizes", {"", "", "auto", "max_live_parameters=0,sub_group_size=5", "prefetch_bucket_size=1000"}},
};
const std::vector<Drawn> kPinning{
    {"offload",
     {"", "optimizer:pageable", "params:pageable", "params,optimizer:pageable", "params:pageable,optimizer"}},
};

void draw(Job& job, const std::vector<Drawn>& rows, Random& random) {
  for (const Drawn& row : rows) {
    const std::string& value = row.values[random() % row.values.size()];
    if (!value.empty()) set_job_field(job, job_field_named(row.field), value, row.field);
  }
}

ModelSpec a_model() { return catalog_spec(*find_in_catalog("meta-llama/Llama-3.1-8B")); }

/// Resolved, on a cluster that is drawn, too. Throws InputError for what contradicts itself.
PlanFile draw_plan(Random& random) {
  constexpr std::array<std::string_view, 4> kClusters{"1xH100-80GB", "2xRTX4090", "8xA100-80GB", "2x8xH100-80GB"};
  PlanFile plan;
  plan.spec = a_model();
  plan.cluster = parse_cluster(kClusters[random() % kClusters.size()]);
  Job job = unresolved_job();
  const bool is_deepspeed = random() % 4 == 0;
  if (is_deepspeed) draw(job, kDeepSpeed, random);
  const bool is_dpo = !is_deepspeed && random() % 8 == 0;
  if (is_dpo) job = on_stack(job, defaults_of(stack_named("trl-dpo"), plan.cluster));
  draw(job, kDrawn, random);
  if (is_deepspeed) draw(job, kOfDeepSpeed, random);
  Random apart = random;
  if (is_deepspeed) draw(job, kPinning, apart);
  if (job.method != Method::full) draw(job, kAdapters, random);
  std::vector<std::string> notes;
  plan.job = resolve_job(job, plan.spec, plan.cluster, notes);
  return plan;
}

/// Fields whose values say the same in two ways are written in one of them.
Job normal(Job job, const Cluster& cluster) {
  job.overlap_comm = overlaps_reductions(job);
  if (!job.frozen_dtype || job.method == Method::full) job.frozen_dtype = job.precision.compute;
  if (job.mesh.replicate == 1) {  // hybrid in name alone
    if (job.sharding == "hybrid-shard") job.sharding = "full-shard";
    if (job.sharding == "hybrid-shard-zero2") job.sharding = "shard-grad-op";
  }
  const bool never = std::holds_alternative<ReshardNever>(job.reshard);
  const Sharding& sharding = sharding_named(job.sharding);
  if (sharding.parameters && (never || !sharding.reshard)) {
    job.sharding = sharding.hybrid ? "hybrid-shard-zero2" : "shard-grad-op";
    job.reshard = ReshardNever{};
  }
  // ZeRO-0 is no choice, and sizes are ZeRO-3's.
  if (job.sharding == "no-shard") job.overlap_comm = false;
  if (job.sharding != "full-shard") job.zero3_sizes = {};
  if (cluster.cards() == 1) {
    job.sharding = "full-shard";
    job.mesh = {};
    job.reshard = ReshardByDefault{};
  }
  const bool is_split = cluster.cards() > 1 && sharding.parameters;
  if (!is_split) job.wrap = WrapLayers{}, job.wrap_embeddings = true;
  if (job.lora.targets.size() == 7) job.lora.targets.clear();  // all linears of the model
  return job;
}

/// As the command line would set it, flag by flag.
void set_flags(Job& job, const std::string& flags) {
  std::istringstream words(flags);
  for (std::string flag, value; words >> flag >> value;) {
    const auto field =
        std::ranges::find_if(job_fields(), [&](const JobField& candidate) { return flag_of(candidate) == flag; });
    REQUIRE(field != job_fields().end());
    set_job_field(job, *field, value, flag);
  }
}

Job job_of(const ImportedJob& imported, const PlanFile& plan, const std::string& flags) {
  Job job = unresolved_job();
  if (plan.job.runtime == Runtime::deepspeed) job = on_stack(job, defaults_of(stack_named("deepspeed"), plan.cluster));
  if (imported.stack == "trl-dpo") job = on_stack(job, defaults_of(stack_named("trl-dpo"), plan.cluster));
  job.wrap_embeddings = false;  // as PyTorch's libraries have it unless told otherwise
  for (const auto& [field, value] : imported.fields) set_job_field(job, job_field_named(field), value, "imported");
  set_flags(job, flags);
  if (imported.is_ddp_on_several && plan.cluster.cards() > 1) job.sharding = "no-shard";
  std::vector<std::string> notes;
  return resolve_job(job, plan.spec, plan.cluster, notes);
}

bool is_marked(const Export& exported, std::string_view field) {
  return std::ranges::find(exported.marked_fields, field) != exported.marked_fields.end();
}

void check_comes_back(const PlanFile& plan, const ExportTool& tool, const Export& exported) {
  const testing::TemporaryDirectory place;
  std::vector<std::string> files;
  for (const ExportedFile& file : exported.files) files.push_back(place.write(file.name, file.text));
  const ImportedJob imported = import_configs(files);
  const Job before = normal(plan.job, plan.cluster),
            after = normal(job_of(imported, plan, exported.job_flags), plan.cluster);
  const bool is_otherwise = plan.job.runtime == Runtime::deepspeed && tool.with_deepspeed != nullptr;
  for (const FieldRow& row : is_otherwise ? tool.with_deepspeed->fields : tool.fields) {
    const bool is_left = row.carried == Carried::script && row.field != "loss";
    if (!is_left && (row.carried != Carried::written || is_marked(exported, row.field))) continue;
    CAPTURE(row.field);
    const JobField& field = job_field_named(row.field);
    CHECK(field.get(after) == field.get(before));
  }
  const bool has_model = tool.name != "accelerate" && tool.name != "deepspeed";
  CHECK(imported.model == (has_model ? plan.spec.name : ""));
  for (const Finding& finding : imported.ignored) CHECK(finding.says.find("knows of no such key") == std::string::npos);
  for (const Finding& finding : imported.unmodelled) CHECK(finding.says.find("quant_storage") == std::string::npos);
}

}  // namespace

TEST_CASE("every tool has a row for every field of a job") {
  for (const std::string& name : export_tool_names()) {
    const ExportTool& tool = export_tool_named(name);
    for (const JobField& field : job_fields()) {
      CAPTURE(name);
      CAPTURE(field.name);
      const bool is_own = std::ranges::find(tool.fields, field.name, &FieldRow::field) != tool.fields.end();
      const auto common = common_fields();
      CHECK((is_own || std::ranges::find(common, field.name, &FieldRow::field) != common.end()));
    }
    for (const FieldRow& row : tool.fields) CHECK_NOTHROW(job_field_named(row.field));
  }
}

TEST_CASE("a job that is exported and imported is the same, or was refused with the flag's name, or marked") {
  for (const std::string& name : export_tool_names()) {
    CAPTURE(name);
    Random random(name.size());
    int written = 0, refused = 0;
    for (int i = 0; i < 1500; ++i) {
      PlanFile plan;
      try {
        plan = draw_plan(random);
      } catch (const Error&) {
        continue;  // no job at all
      }
      CAPTURE(job_as_flags(plan.job, Job{}));
      CAPTURE(plan.cluster.text);
      try {
        const Export exported = export_plan(plan, export_tool_named(name));
        check_comes_back(plan, export_tool_named(name), exported);
        ++written;
      } catch (const InputError& error) {
        ++refused;
        CHECK(std::string(error.what()).starts_with("--to " + name + ": --"));
      }
    }
    CHECK(written > 10);
    CHECK(refused > 20);
  }
}

TEST_CASE("a model is written under the name that a hub has for it, which a short one isn't") {
  PlanFile plan;
  plan.cluster = parse_cluster("1xH100-80GB");
  const auto exported = [&](const char* name, const char* tool) {
    plan.spec = catalog_spec(*find_in_catalog(name));
    plan.spec.name = name;  // as it was asked for
    std::vector<std::string> notes;
    Job job = on_stack(unresolved_job(), defaults_of(stack_named("transformers"), plan.cluster));
    set_job_field(job, job_field_named("precision"), "bf16-pure", "precision");
    plan.job = resolve_job(job, plan.spec, plan.cluster, notes);
    return export_plan(plan, export_tool_named(tool)).files.back().text;
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  CHECK(has(exported("llama-3.1-8b", "axolotl"), "base_model: meta-llama/Llama-3.1-8B\n"));
  CHECK(has(exported("Llama-3.1-8B", "trl"), "model_name_or_path: meta-llama/Llama-3.1-8B\n"));
  CHECK(has(exported("unsloth/Llama-3.1-8B", "trl"), "model_name_or_path: unsloth/Llama-3.1-8B\n"));
}

TEST_CASE("QLoRA that FSDP2 shards has its codes in the dtype of products") {
  PlanFile plan;
  plan.spec = a_model();
  const auto exported = [&](const char* gpus, const char* format, const char* tool) {
    plan.cluster = parse_cluster(gpus);
    Job job = unresolved_job();
    for (const auto& [field, value] : {std::pair{"method", "qlora"}, {"quantization", format}}) {
      set_job_field(job, job_field_named(field), value, field);
    }
    std::vector<std::string> notes;
    plan.job = resolve_job(job, plan.spec, plan.cluster, notes);
    return export_plan(plan, export_tool_named(tool));
  };
  for (const char* format : {"nf4", "nf4-double"}) {
    const Export sharded = exported("2xA100-40GB", format, "trl");
    CHECK(sharded.files[1].text.find("\nbnb_4bit_quant_storage: bfloat16\n") != std::string::npos);
    CHECK(sharded.files[1].text.find("device_map") != std::string::npos);
    check_comes_back(plan, export_tool_named("trl"), sharded);
    CHECK(exported("1xA100-40GB", format, "trl").files[1].text.find("quant_storage") == std::string::npos);
    const std::string script = exported("2xA100-40GB", format, "accelerate").files[0].text;
    CHECK(script.find("bnb_4bit_quant_storage=torch.bfloat16") != std::string::npos);
  }
}

TEST_CASE("what is marked stands in the file, and the command has the allocator's setting") {
  PlanFile plan;
  plan.spec = a_model();
  plan.cluster = parse_cluster("8xH100-80GB");
  Job job = unresolved_job();
  for (const auto& [field, value] :
       {std::pair{"reshard", "last-kept"}, {"loss", "chunked:4"}, {"precision", "bf16-mixed"}}) {
    set_job_field(job, job_field_named(field), value, field);
  }
  std::vector<std::string> notes;
  plan.job = resolve_job(job, plan.spec, plan.cluster, notes);
  const Export exported = export_plan(plan, export_tool_named("trl"));
  REQUIRE(exported.files.size() == 2);
  CHECK(exported.files[1].text.find("#   --reshard last-kept: ") != std::string::npos);
  CHECK(exported.files[1].text.find("#   --loss chunked:4: ") != std::string::npos);
  CHECK(exported.command.starts_with("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True trl sft "));
}

TEST_CASE("on one GPU nothing is said of units, and axolotl names the dtype of frozen weights that it loads") {
  PlanFile plan;
  plan.spec = a_model();
  plan.cluster = parse_cluster("1xH100-80GB");
  const auto exported = [&](const std::string& frozen) {
    Job job = on_stack(unresolved_job(), defaults_of(stack_named("transformers"), plan.cluster));
    set_job_field(job, job_field_named("method"), "qlora", "method");
    set_job_field(job, job_field_named("frozen_dtype"), frozen, "frozen_dtype");
    std::vector<std::string> notes;
    plan.job = resolve_job(job, plan.spec, plan.cluster, notes);
    return export_plan(plan, export_tool_named("axolotl"));
  };
  const Export written = exported("bf16");
  CHECK(std::ranges::none_of(written.marks, [](const std::string& mark) { return mark.starts_with("--wrap"); }));
  CHECK_THROWS_WITH_AS(exported("fp32"), doctest::Contains("--frozen-dtype bf16"), InputError);
}

TEST_CASE("a plan for DPOTrainer is written for trl dpo, and for no tool that fine-tunes") {
  PlanFile plan;
  plan.spec = a_model();
  plan.cluster = parse_cluster("1xH100-80GB");
  Job job = on_stack(unresolved_job(), defaults_of(stack_named("trl-dpo"), plan.cluster));
  std::vector<std::string> notes;
  plan.job = resolve_job(job, plan.spec, plan.cluster, notes);
  const Export exported = export_plan(plan, export_tool_named("trl"));
  CHECK(exported.files.at(1).name == "dpo.yaml");
  CHECK(exported.files.at(1).text.find("f_divergence_type: reverse_kl\n") != std::string::npos);
  CHECK(exported.command.find("trl dpo --config dpo.yaml ") != std::string::npos);
  for (const char* const tool : {"axolotl", "accelerate", "deepspeed"}) {
    CAPTURE(tool);
    CHECK_THROWS_WITH_AS(export_plan(plan, export_tool_named(tool)), doctest::Contains("--modeling trl-dpo: "),
                         InputError);
  }
}

TEST_CASE("a plan of DPOTrainer's reference under FSDP says that trl dpo would fail on it") {
  PlanFile plan;
  plan.spec = a_model();
  const auto is_said = [&](const char* cluster, const char* method) {
    plan.cluster = parse_cluster(cluster);
    Job job = on_stack(unresolved_job(), defaults_of(stack_named("trl-dpo"), plan.cluster));
    job_field_named("method").set(job, method);
    std::vector<std::string> notes;
    plan.job = resolve_job(job, plan.spec, plan.cluster, notes);
    return std::ranges::any_of(export_plan(plan, export_tool_named("trl")).marks, [](const std::string& mark) {
      return mark.starts_with("--method full: trl dpo loads the reference by name");
    });
  };
  CHECK(is_said("2xH100-80GB", "full"));
  CHECK_FALSE(is_said("2xH100-80GB", "lora"));
  CHECK_FALSE(is_said("1xH100-80GB", "full"));
}

TEST_CASE("a plan for RewardTrainer is written for trl reward, and is read as what it was") {
  const testing::TemporaryDirectory place;
  PlanFile plan;
  plan.spec = a_model();
  plan.cluster = parse_cluster("1xH100-80GB");
  for (const char* const method : {"full", "lora"}) {
    CAPTURE(method);
    Job job = on_stack(unresolved_job(), defaults_of(stack_named("trl-reward"), plan.cluster));
    job_field_named("method").set(job, method);
    std::vector<std::string> notes;
    plan.job = resolve_job(job, plan.spec, plan.cluster, notes);
    const Export exported = export_plan(plan, export_tool_named("trl"));
    CHECK(exported.files.at(1).name == "reward.yaml");
    CHECK(exported.command.find("trl reward --config reward.yaml ") != std::string::npos);
    const ImportedJob read = import_configs({place.write("reward.yaml", exported.files[1].text)});
    CHECK(read.stack == "trl-reward");
    CHECK(read.unmodelled.empty());
  }
  CHECK_THROWS_WITH_AS(export_plan(plan, export_tool_named("axolotl")), doctest::Contains("--modeling trl-reward: "),
                       InputError);
}

TEST_CASE("a plan for GRPOTrainer is written for trl grpo, and is read as what it was") {
  const testing::TemporaryDirectory place;
  PlanFile plan;
  plan.spec = a_model();
  plan.cluster = parse_cluster("1xH100-80GB");
  std::vector<std::string> notes;
  Job chosen = on_stack(unresolved_job(), defaults_of(stack_named("trl-grpo"), plan.cluster));
  const std::string choices = "reference,num_iterations=2,steps_per_generation=4";
  job_field_named("grpo").set(chosen, choices);
  plan.job = resolve_job(chosen, plan.spec, plan.cluster, notes);
  const Export exported = export_plan(plan, export_tool_named("trl"));
  CHECK(exported.files.at(1).name == "grpo.yaml");
  CHECK(exported.command.find("trl grpo --config grpo.yaml ") != std::string::npos);
  const ImportedJob read = import_configs({place.write("grpo.yaml", exported.files[1].text)});
  CHECK(read.stack == "trl-grpo");
  CHECK(read.unmodelled.empty());
  for (const auto& field : {std::pair<std::string, std::string>{"seq_len", std::to_string(plan.job.sequence)},
                            std::pair<std::string, std::string>{"grpo", choices}}) {
    CHECK(std::ranges::find(read.fields, field) != read.fields.end());
  }
}

TEST_CASE("texts that YAML would take for something else are quoted") {
  CHECK(yaml_text("meta-llama/Llama-3.1-8B") == "meta-llama/Llama-3.1-8B");
  CHECK(yaml_text("no") == "'no'");
  CHECK(yaml_text("1e3") == "1e3");  // a text in YAML 1.1
  CHECK(yaml_text("12") == "'12'");
  CHECK(yaml_text("it's: a") == "'it''s: a'");
  CHECK(yaml_text("") == "''");
}

}  // namespace vramfit
