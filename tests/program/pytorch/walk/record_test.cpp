// PyTorch's side of the estimator: kernels' scratch, FSDP2's groups, what is recorded. That all of it together is
// what PyTorch does is tested in tests/oracle/torchtitan_like, event by event.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <variant>

#include "base/error.h"
#include "estimator/estimate.h"
#include "job/cluster/reduce_scratch.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "model_specs/graph.h"
#include "program/make_program.h"
#include "program/pytorch/calls/kernels.h"
#include "program/pytorch/calls/torch.h"
#include "program/readers/check.h"
#include "program/readers/count.h"
#include "tests/support/config_file.h"
#include "tests/support/devices.h"
#include "tests/support/models.h"

namespace vramfit {
namespace {

using testing::kH100;

Bytes live_bytes(const Ledger& ledger) {
  Bytes sum;
  for (const Event& event : ledger.events) sum += Bytes{event.bytes};
  return sum;
}

std::int64_t allocations(const Ledger& ledger) {
  return std::ranges::count_if(ledger.events, [](const Event& e) { return e.bytes > 0; });
}

Job llama_job(const std::string& name, const std::string& value) {
  Job job = unresolved_job();
  const auto set = [&](const char* field, const std::string& to) { job_field_named(field).set(job, to); };
  set("runtime", "pytorch-fsdp2");
  set("modeling", "torchtitan");
  set("attention", "flash");
  if (!name.empty()) set(name.c_str(), value);
  return job;
}

Estimate estimate_llama(const std::string& name = "", const std::string& value = "") {
  return estimate(testing::small_llama(), llama_job(name, value), parse_cluster("4xH100-80GB"), {.suggestions = false});
}

Job recorded_job(const Job& job) {
  std::vector<std::string> notes;
  const char* const cards = job.runtime == Runtime::pytorch ? "1xH100-80GB" : "4xH100-80GB";
  return resolve_job(job, testing::small_llama(), parse_cluster(cards), notes);
}

/// Of runtime pytorch, on one GPU.
Job plain_job(const std::string& name, const std::string& value) {
  Job job = llama_job("", "");
  job_field_named("runtime").set(job, "pytorch");
  job_field_named("precision").set(job, "bf16-pure");
  job_field_named(name).set(job, value);
  return job;
}

program::Program recorded(const Job& job) {
  return program::make_program(
      {.graph = build_graph(testing::small_llama(), {}), .job = recorded_job(job), .device = kH100, .coords = {}});
}

TEST_CASE("a sum over rows splits its work over thread blocks and needs a place for their results") {
  CHECK(sum_over_rows(2048, 1024, kH100).partials == Bytes{16777216});
  CHECK(sum_over_rows(2048, 1024, kH100).counters == Bytes{32});
  CHECK(sum_over_rows(8192, 4096, kH100).partials == Bytes{138412032});
  CHECK(sum_over_rows(8192, 4096, kH100).counters == Bytes{128});
}

TEST_CASE("a sum of everything into one number splits its work too") {
  CHECK(sum_over_all(1 << 28, kH100).partials == Bytes{4 * (1 << 28) / 512 / 256});  // 256 values a thread
  CHECK(sum_over_all(1 << 28, kH100).counters == Bytes{4});
  CHECK(sum_over_all(1 << 16, kH100).partials == Bytes{});
  CHECK(sum_over_all(0, kH100).partials == Bytes{});
}

TEST_CASE("a sum over few rows stays within a thread block") {
  CHECK(sum_over_rows(64, 1024, kH100).partials == Bytes{});
}

TEST_CASE("FSDP2's copies pack a table with one entry a thread block") {
  // Llama blocks of hidden 1024 on 8 ranks: wq, wk, wv, wo, w1, w2, w3, two norms; bf16 shards, then fp32.
  const std::vector<std::int64_t> shards{262144, 65536, 65536, 262144, 917504, 917504, 917504, 256, 256};
  CHECK(eager::split_copy_table(shards, 8, kH100) == Bytes{6968});
  std::vector<std::int64_t> wide = shards;
  for (std::int64_t& bytes : wide) bytes *= 2;
  CHECK(eager::chunk_cat_table(wide) == Bytes{27088});
}

/// Allocated by torch 2.11 on these cards, with one layer of that head_dim and a mask.
TEST_CASE("memory-efficient attention in 16 bits works in blocks that fit a card's thread blocks") {
  const auto bytes = [](const char* card, std::int64_t heads, std::int64_t sequence, std::int64_t head_dim) {
    return eager::efficient_workspace_in_16_bits(heads, sequence, head_dim, parse_cluster(card).card.device).n;
  };
  CHECK(bytes("1xRTX4090", 4, 128, 16) == 131200);
  CHECK(bytes("1xRTX4090", 4, 256, 96) == 524544);
  CHECK(bytes("1xRTX4090", 4, 256, 128) == 1573376);
  CHECK(bytes("1xRTX4090", 4, 256, 256) == 3146240);
  CHECK(bytes("1xRTX5090", 4, 256, 96) == 1573376);
  CHECK(bytes("1xA100-80GB", 4, 256, 96) == 524416);
  CHECK(bytes("1xA100-80GB", 80, 200, 256) == 41953280);
  CHECK(bytes("1xT4", 6, 623, 128) == 1967040);
  CHECK(bytes("1xT4", 3, 300, 136) == 2851248);
}

TEST_CASE("modelings name what they have no code for") {
  const auto why = [](const char* family, const char* modeling) {
    Job job = plain_job("modeling", modeling);
    if (job.modeling == Modeling::transformers) job.attention = Attention::automatic;
    const Estimate e =
        estimate(testing::small_model(family), job, parse_cluster("1xH100-80GB"), {.suggestions = false});
    return e.verdict == Verdict::not_modelled ? e.why : "";
  };
  for (const char* family :
       {"llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3_text", "gpt2", "bert"}) {
    CAPTURE(family);
    CHECK(why(family, "transformers").empty());
  }
  CHECK(why("qwen2", "torchtitan").find("--modeling torchtitan for a model with biases") != std::string::npos);
  CHECK(why("qwen3", "torchtitan").find("norms of queries and keys") != std::string::npos);
  CHECK(why("mistral", "torchtitan").find("--modeling torchtitan for sliding windows") != std::string::npos);
  CHECK(why("phi3", "torchtitan").find("--modeling torchtitan for packed matrices") != std::string::npos);
  for (const char* family : {"gemma", "gemma2", "gemma3_text", "gpt2", "bert"}) {
    CAPTURE(family);
    CHECK(why(family, "torchtitan").find("--modeling torchtitan for a model built differently from Llama") !=
          std::string::npos);
  }
  const auto with_flash = [](const char* family) {
    Job job = plain_job("modeling", "transformers");
    job_field_named("attention").set(job, "flash");
    job_field_named("seq_len").set(job, "128");
    return estimate(testing::small_model(family), job, parse_cluster("1xH100-80GB"), {.suggestions = false}).why;
  };
  CHECK(with_flash("gemma2").find("--attention flash of a model with Gemma 2's scores") == 0);
  CHECK(with_flash("gemma3_text").find("--attention flash of a model with sliding windows") == 0);
}

TEST_CASE("adapters are PEFT's: with transformers, over weights in 4 bits under autocast") {
  const auto of = [](const char* modeling, const char* method, const char* precision = "bf16-pure",
                     const char* quantization = "none") {
    Job job = plain_job("modeling", modeling);
    const auto set = [&](const char* field, const char* to) { job_field_named(field).set(job, to); };
    set("method", method);
    set("precision", precision);
    set("quantization", quantization);
    set("seq_len", "128");
    set("micro_batch", "8");
    return estimate(testing::small_llama(), job, parse_cluster("1xH100-80GB"), {.suggestions = false});
  };
  CHECK(of("transformers", "lora").verdict == Verdict::fits);
  const Estimate in_4_bits = of("transformers", "qlora", "bf16-mixed");
  CHECK(in_4_bits.verdict == Verdict::fits);
  CHECK(in_4_bits.job.quantization == "nf4-double");
  CHECK(in_4_bits.job.frozen_dtype == Dtype::f32);
  CHECK(of("transformers", "qlora", "fp16-mixed").verdict == Verdict::fits);
  CHECK(of("transformers", "qlora").why.find("and --precision bf16-pure (") != std::string::npos);
  CHECK(of("transformers", "qlora", "bf16-mixed", "int8").why.find("with --quantization int8") != std::string::npos);
  CHECK(of("transformers", "lora", "bf16-mixed", "nf4").why.find("--method lora with --quantization nf4") == 0);
  CHECK(of("torchtitan", "qlora", "fp32").why.find("--method qlora") != std::string::npos);
  CHECK(of("torchtitan", "lora").why.find("--method lora") != std::string::npos);
}

TEST_CASE("a steady step ends with what the first one left but for the loss that is logged") {
  const Job job = [] {
    std::vector<std::string> notes;
    return resolve_job(llama_job("", ""), testing::small_llama(), parse_cluster("4xH100-80GB"), notes);
  }();
  const Graph graph = build_graph(testing::small_llama(), {});
  const Ledger two = count(graph, job, kH100, {}, {.steps = 2});
  const Ledger three = count(graph, job, kH100, {}, {.steps = 3});
  CHECK(live_bytes(three) - live_bytes(two) == Bytes{4});
  CHECK(allocations(three) > allocations(two));
}

TEST_CASE("what is recorded is sound: streams wait for each other, and later steps leave what they found") {
  for (const auto& [field, value] : {std::pair{"checkpointing", "selective"}, std::pair{"optimizer", "adamw:foreach"},
                                     std::pair{"reshard", "always"}, std::pair{"wrap_embeddings", "on"},
                                     std::pair{"wrap", "layers:2"}, std::pair{"mesh", "replicate=2,shard=2"}}) {
    Job job = llama_job(field, value);
    if (job.mesh.replicate == 2) job.sharding = "hybrid-shard";
    CAPTURE(value);
    CHECK(program::fault_of(recorded(job)) == std::nullopt);
  }
}

TEST_CASE("collectives of a recorded step name their ranks and the bytes of the whole data") {
  using namespace program;  // NOLINT(google-build-using-namespace): the program's own words
  Job job = llama_job("mesh", "replicate=2,shard=2");
  job.sharding = "hybrid-shard";
  const Program whole = recorded(job);
  std::int64_t gathered = 0, scattered = 0, summed = 0;
  for (const Section& section : whole.sections) {
    if (!is_in_step(section, 2)) continue;
    for (std::size_t i = section.begin; i < section.end; ++i) {
      const auto* start = std::get_if<Start>(&whole.main.instructions[i]);
      if (start == nullptr) continue;
      if (start->collective == Collective::all_gather) gathered += start->bytes.n;
      if (start->collective == Collective::reduce_scatter) scattered += start->bytes.n;
      if (start->axis == Axis::replicate) summed += start->bytes.n;
    }
  }
  std::int64_t parameters = 0;
  for (const Parameter& p : build_graph(testing::small_llama(), {}).parameters) parameters += element_count(p);
  CHECK(scattered == 4 * parameters);  // fp32
  CHECK(summed == 2 * parameters);     // half of it a rank
  CHECK(gathered > 2 * parameters);    // bf16; blocks twice, the root once
  CHECK(gathered < 2 * 2 * parameters);
  const Group shards = whole.groups.at(static_cast<std::size_t>(Axis::shard));
  const Group replicas = whole.groups.at(static_cast<std::size_t>(Axis::replicate));
  CHECK((shards.members == 2 && shards.stride == 1));
  CHECK((replicas.members == 2 && replicas.stride == 2));
}

TEST_CASE("what is recorded of one GPU is sound, whatever is accumulated") {
  for (const auto& [field, value] : {std::pair{"grad_accum", "1"}, std::pair{"grad_accum", "2"},
                                     std::pair{"grad_accum", "5"}, std::pair{"checkpointing", "selective"},
                                     std::pair{"optimizer", "adamw:foreach"}, std::pair{"loss", "chunked:4"}}) {
    CAPTURE(value);
    CHECK(program::fault_of(recorded(plain_job(field, value))) == std::nullopt);
  }
}

TEST_CASE("micro-batches between the first and the last are one section, whose events are those of each") {
  const Graph graph = build_graph(testing::small_llama(), {});
  const auto events = [&](const char* accumulation) {
    return allocations(count(graph, recorded_job(plain_job("grad_accum", accumulation)), kH100, {},
                             {.steps = 2, .abbreviate = false}));
  };
  CHECK(events("3") > events("2"));
  CHECK(events("7") - events("3") == 4 * (events("3") - events("2")));
}

TEST_CASE("a loss in parts converts a part of the logits at a time, and keeps the log-probabilities of all") {
  const auto kept = [](const char* loss) {
    const program::Program program = recorded(plain_job("loss", loss));
    std::vector<std::int64_t> bytes;
    for (const program::Buffer& buffer : program.main.buffers) {
      const std::string label = program::label_text(program, buffer.segment, buffer.label);
      if (label.starts_with("loss: log_softmax")) bytes.push_back(buffer.bytes.n);
    }
    return bytes;
  };
  const std::vector<std::int64_t> whole = kept("full"), parts = kept("chunked:4");
  // Each and its gradient.
  CHECK(whole.size() == 2);
  CHECK(parts.size() == 5);
  CHECK(std::ranges::all_of(parts, [&](std::int64_t bytes) { return 4 * bytes == whole.front(); }));
}

TEST_CASE("what --runtime pytorch has no rules for is named") {
  const auto why = [](const std::string& field, const std::string& value, const char* cards) {
    const Estimate e =
        estimate(testing::small_llama(), plain_job(field, value), parse_cluster(cards), {.suggestions = false});
    return e.verdict == Verdict::not_modelled ? e.why : "";
  };
  CHECK(why("grad_accum", "2", "2xH100-80GB").starts_with("--runtime pytorch with --sharding full-shard on several"));
  CHECK(
      why("sharding", "no-shard", "2xH100-80GB").starts_with("--sharding no-shard (--runtime pytorch-ddp) on several"));
  CHECK(why("precision", "bf16-mixed", "1xH100-80GB")
            .starts_with("--precision bf16-mixed (--precision bf16-pure and fp32 are);"));
  CHECK(why("precision", "fp32", "1xH100-80GB").starts_with("--attention flash (--attention auto is);"));
  CHECK(why("wrap_embeddings", "on", "1xH100-80GB").starts_with("--wrap-embeddings on (leave it out);"));
  CHECK(why("loss", "chunked-forward:4", "1xH100-80GB").find("--loss chunked:4)") != std::string::npos);
  CHECK(why("loss", "chunked:3", "1xH100-80GB").find("parts of equal length are") != std::string::npos);
  CHECK(why("loss", "chunked:4", "1xH100-80GB").empty());
  CHECK(why("loss", "chunked:4097", "1xH100-80GB").find("up to 4096 parts are") != std::string::npos);
  CHECK(why("optimizer", "adamw:deepspeed", "1xH100-80GB").find("--stack deepspeed has it;") != std::string::npos);
  CHECK(why("modeling", "vramfit", "1xH100-80GB").starts_with("--runtime pytorch with --modeling vramfit;"));
}

TEST_CASE("a recorded step without one of its starts is unsound, and so is one without a collective's wait") {
  using namespace program;  // NOLINT(google-build-using-namespace): the program's own words
  const Program whole = recorded(llama_job("", ""));
  std::set<int> tokens;
  int left_out = 0;
  for (std::size_t i = 0; i < whole.main.instructions.size(); ++i) {
    const auto* start = std::get_if<Start>(&whole.main.instructions[i]);
    const auto* wait = std::get_if<Wait>(&whole.main.instructions[i]);
    if (start != nullptr) tokens.insert(start->token);
    if (start == nullptr && (wait == nullptr || !tokens.contains(wait->token))) continue;
    Program without = whole;
    without.main.instructions[i] = Mark{};
    CAPTURE(i);
    CHECK(fault_of(without) != std::nullopt);
    ++left_out;
  }
  CHECK(left_out > 30);
}

TEST_CASE("the Trainer's steps on one GPU are sound programs") {
  for (const char* precision : {"bf16-mixed", "bf16-pure", "fp16-mixed"}) {
    for (const char* micro_batches : {"1", "3"}) {
      Job job = plain_job("modeling", "transformers");
      for (const auto& [name, value] :
           {std::pair{"precision", precision}, {"grad_accum", micro_batches}, {"attention", "auto"}}) {
        job_field_named(name).set(job, value);
      }
      const auto fault = program::fault_of(recorded(job));
      CHECK_MESSAGE(!fault, fault.value_or(""));
    }
  }
}

TEST_CASE(
    "the products of a step are three for each matrix and token, and full checkpointing makes all but the last again") {
  const auto flops_of = [](const char* checkpointing) {
    const program::Program program = recorded(llama_job("checkpointing", checkpointing));
    double flops = 0;
    for (const program::Section& section : program.sections) {
      if (!is_in_step(section, 2)) continue;
      for (std::size_t i = section.begin; i < section.end; ++i) {
        const auto* run = std::get_if<program::Run>(&program.main.instructions[i]);
        for (std::uint32_t w = 0; run != nullptr && w < run->work.count; ++w) {
          const Work& work = program.main.work[run->work.first + w];
          if (work.unit == Work::Unit::product) flops += work.flops;
        }
      }
    }
    return flops;
  };
  const ModelSpec spec = testing::small_llama();
  const double hidden = static_cast<double>(spec.hidden_size), ffn = static_cast<double>(spec.intermediate_size);
  const double keys =
      hidden * static_cast<double>(spec.num_key_value_heads) / static_cast<double>(spec.num_attention_heads);
  const double layers = static_cast<double>(spec.num_hidden_layers);
  const double head = hidden * static_cast<double>(spec.vocab_size);
  const double block = 2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * ffn;
  const double tokens = static_cast<double>(recorded_job(llama_job("", "")).sequence);
  CHECK(flops_of("none") == 2 * tokens * 3 * (layers * block + head));
  CHECK(flops_of("full") == 2 * tokens * (3 * (layers * block + head) + layers * (block - hidden * ffn)));
}

TEST_CASE("sections are load, the first step, which makes the optimizer's states, and later steps") {
  using program::Section;
  std::vector<std::pair<Section::Kind, Section::Steps>> sections;
  for (const Section& s : recorded(llama_job("", "")).sections) sections.emplace_back(s.kind, s.steps);
  using Kind = Section::Kind;
  using Steps = Section::Steps;
  CHECK(sections == std::vector<std::pair<Kind, Steps>>{{Kind::load, Steps::every},
                                                        {Kind::last, Steps::first},
                                                        {Kind::update, Steps::first},
                                                        {Kind::last, Steps::later},
                                                        {Kind::update, Steps::later}});
}

TEST_CASE("last-kept holds more than default and less than never") {
  const auto peak = [](const char* reshard) { return estimate_llama("reshard", reshard).ranks.at(0).peak_allocated; };
  CHECK(peak("default") <= peak("last-kept"));
  CHECK(peak("always") <= peak("default"));
  CHECK(peak("last-kept") < estimate_llama("sharding", "shard-grad-op").ranks.at(0).peak_allocated);
}

TEST_CASE("selective checkpointing lies between full and none") {
  const auto peak = [](const char* mode) { return estimate_llama("checkpointing", mode).ranks.at(0).peak_allocated; };
  CHECK(peak("full") < peak("selective"));
  CHECK(peak("selective") < peak("none"));
}

TEST_CASE("what PyTorch's runtime has no rules for is named") {
  const auto why = [](const char* field, const char* value) {
    const Estimate e = estimate_llama(field, value);
    CHECK(e.verdict == Verdict::not_modelled);
    return e.why;
  };
  CHECK(why("modeling", "vramfit").starts_with("--runtime pytorch-fsdp2 with --modeling vramfit;"));
  CHECK(why("freeze", "embeddings").starts_with("--freeze embeddings (--stack vramfit has it);"));
  CHECK(why("frozen_dtype", "bf16").starts_with("--frozen-dtype bf16 (--stack vramfit has it);"));
  CHECK(why("grad_accum", "2").starts_with("--grad-accum 2 (--grad-accum 1 is; --stack transformers has it);"));
  CHECK(why("precision", "bf16-pure").starts_with("--precision bf16-pure (--precision bf16-mixed is);"));
  CHECK(why("attention", "auto").starts_with("--attention cudnn"));
  CHECK(why("wrap", "none").starts_with("--wrap none (--wrap layer is; --stack vramfit has others);"));
  CHECK(why("sharding", "no-shard").starts_with("--sharding no-shard with one shard and torchtitan ("));
}

TEST_CASE("a runtime brings its defaults, and flags that contradict them are shown") {
  Job job = llama_job("", "");
  CHECK(job.allocator == "native");
  CHECK_FALSE(job.wrap_embeddings);
  CHECK(job_as_flags(job, unresolved_job()) == "--runtime pytorch-fsdp2 --modeling torchtitan --attention flash");
  job_field_named("allocator").set(job, "expandable");
  CHECK(job_as_flags(job, unresolved_job()) ==
        "--runtime pytorch-fsdp2 --modeling torchtitan --attention flash --allocator expandable");
}

}  // namespace
}  // namespace vramfit
