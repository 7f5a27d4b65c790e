#include "estimator/estimate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "base/error.h"
#include "estimator/rank_estimate.h"
#include "job/fields/job_fields.h"
#include "job/loss/loss_options.h"
#include "program/stages/adapters.h"
#include "program/stages/units_layout.h"
#include "tests/support/config_file.h"
#include "tests/support/job_settings.h"
#include "tests/support/models.h"

namespace vramfit {

using testing::job_with;
using testing::Settings;

namespace {

Estimate estimate_of(const ModelSpec& spec, const char* cluster, const Settings& settings = {}) {
  return estimate(spec, job_with(settings), parse_cluster(cluster), {});
}

bool mentions(const std::vector<std::string>& lines, const std::string& part) {
  return std::ranges::any_of(lines, [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

void check_sums(const RankEstimate& rank) {
  Bytes sum = rank.breakdown.rounding;
  for (const Bytes bytes : rank.breakdown.categories) sum += bytes;
  CHECK(sum == rank.peak_allocated);
  CHECK(rank.peak_allocated + rank.breakdown.fragmentation == rank.peak_reserved);
  CHECK(rank.peak_reserved + rank.breakdown.outside_allocator == rank.total);
  CHECK(rank.total <= rank.upper_bound);
  for (const PhasePeak& phase : rank.phases) CHECK(phase.allocated <= rank.peak_allocated);
}

}  // namespace

TEST_CASE("the lines of an estimate sum exactly, on CPU and CUDA, in every runnable precision and sharding") {
  for (const char* cluster : {"1xcpu-4GiB", "4xcpu-4GiB", "4xH100-80GB"}) {
    for (const char* precision : {"fp32", "bf16-mixed", "bf16-pure"}) {
      for (const char* sharding : {"no-shard", "shard-grad-op", "full-shard"}) {
        CAPTURE(cluster);
        CAPTURE(precision);
        CAPTURE(sharding);
        const Estimate e =
            estimate_of(testing::small_llama(), cluster, {{"precision", precision}, {"sharding", sharding}});
        CAPTURE(e.why);
        REQUIRE(e.ranks.size() == 1);
        check_sums(e.ranks[0]);
        CHECK(e.verdict == Verdict::fits);
      }
    }
  }
}

TEST_CASE("every runnable family is counted in every loss and checkpointing, on CPU and CUDA") {
  for (const std::string& name : testing::small_models()) {
    for (const char* cluster : {"2xcpu-4GiB", "2xH100-80GB", "2xT4"}) {
      for (const char* loss : {"full", "chunked:3"}) {
        for (const char* checkpointing : {"none", "full", "every:2"}) {
          const Estimate e = estimate_of(testing::small_model(name), cluster,
                                         {{"seq_len", "32"},
                                          {"grad_accum", "2"},
                                          {"precision", cluster == std::string("2xT4") ? "fp16-mixed" : "bf16-mixed"},
                                          {"loss", loss},
                                          {"checkpointing", checkpointing}});
          CAPTURE(name);
          CAPTURE(cluster);
          CAPTURE(e.why);
          CHECK(e.verdict == Verdict::fits);
          check_sums(e.ranks.at(0));
        }
      }
    }
  }
}

TEST_CASE("states of a full-shard job are a rank's share of all parameters") {
  const Estimate e = estimate_of(testing::llama_8b(), "8xH100-80GB", {{"seq_len", "8192"}});
  REQUIRE(e.ranks.size() == 1);
  CHECK(e.parameters == 8030261248);
  CHECK(e.ranks[0].last_rank == 7);
  const auto& categories = e.ranks[0].breakdown.categories;
  // Every matrix divides by 8, so shards hold no padding beyond the 512-byte alignment of norms.
  CHECK(categories[static_cast<std::size_t>(Category::parameters)].n == std::int64_t{8030261248} / 8 * 4);
  CHECK(categories[static_cast<std::size_t>(Category::optimizer_state)].n == 8030261248 + std::int64_t{4} * 34);
  CHECK(mentions(e.assumptions, "phantom GPUs), not real hardware"));
}

TEST_CASE("where the loss is chunked by default, the job never needs more than with full loss") {
  const auto peak_of = [](std::vector<std::pair<const char*, const char*>> settings, const char* loss) {
    settings.emplace_back("loss", loss);
    return estimate_of(testing::llama_8b(), "8xH100-80GB", settings).ranks.at(0).peak_requested;
  };
  int chunked = 0, less = 0;
  for (const char* sequence : {"1024", "2048", "4096", "8192"}) {
    for (const char* reduce : {"fp32", "bf16"}) {
      for (const char* checkpointing : {"none", "full"}) {
        const Settings settings{{"seq_len", sequence}, {"reduce_dtype", reduce}, {"checkpointing", checkpointing}};
        const Estimate usual = estimate_of(testing::llama_8b(), "8xH100-80GB", settings);
        CAPTURE(job_as_flags(usual.job, unresolved_job()));
        if (std::holds_alternative<FullLoss>(usual.job.loss)) continue;
        ++chunked;
        const Bytes peak = usual.ranks.at(0).peak_requested, with_full = peak_of(settings, "full");
        CHECK(peak <= with_full);
        less += peak < with_full ? 1 : 0;
      }
    }
  }
  CHECK(chunked == 8);  // 8192 tokens, and 2048 or more where gradients are reduced in bf16
  CHECK(less == 6);     // the other two have their peak below the head
  less = 0;
  for (const char* sequence : {"1024", "4096"}) {
    for (const char* checkpointing : {"none", "full"}) {
      const Settings settings{{"seq_len", sequence}, {"freeze", "head"}, {"checkpointing", checkpointing}};
      const Estimate usual = estimate_of(testing::llama_8b(), "8xH100-80GB", settings);
      CHECK(std::holds_alternative<ChunkedLoss>(usual.job.loss));
      const Bytes peak = usual.ranks.at(0).peak_requested, with_full = peak_of(settings, "full");
      CHECK(peak <= with_full);
      less += peak < with_full ? 1 : 0;
    }
  }
  CHECK(less > 0);
}

TEST_CASE("the verdict follows total and bound") {
  const Estimate fits = estimate_of(testing::small_llama(), "1xcpu-4GiB");
  CHECK(fits.verdict == Verdict::fits);
  CHECK(fits.capacity == 4 * kGiB);
  const Bytes total = fits.ranks[0].total;
  Cluster cluster = fits.cluster;
  cluster.card.memory = total;
  CHECK(estimate(testing::small_llama(), unresolved_job(), cluster, {}).verdict == Verdict::at_risk);
  cluster.card.memory = total - Bytes{1};
  CHECK(estimate(testing::small_llama(), unresolved_job(), cluster, {}).verdict == Verdict::does_not_fit);
  cluster.card.memory = fits.ranks[0].upper_bound;
  CHECK(estimate(testing::small_llama(), unresolved_job(), cluster, {}).verdict == Verdict::fits);
}

TEST_CASE("on CPU the bound exceeds the peak by less than 2 %, and nothing lies outside the allocator") {
  const RankEstimate rank = estimate_of(testing::small_llama(), "2xcpu-4GiB").ranks.at(0);
  CHECK(static_cast<double>(rank.upper_bound.n) < 1.02 * static_cast<double>(rank.peak_requested.n));
  CHECK(rank.upper_bound > rank.peak_requested);
  CHECK(rank.breakdown.outside_allocator.n == 0);
}

TEST_CASE("more communicators lie outside the allocator as the mesh gets axes") {
  const auto outside = [](const char* cluster, const char* sharding) {
    return estimate_of(testing::llama_8b(), cluster, {{"sharding", sharding}}).ranks.at(0).breakdown.outside_allocator;
  };
  const Card& card = parse_cluster("H100-80GB").card;
  CHECK(outside("1xH100-80GB", "full-shard") == card.context);
  CHECK(outside("1xH200-141GB", "full-shard") == 687 * kMiB);
  Job job = unresolved_job();
  job.runtime = Runtime::pytorch_fsdp2;
  const Graph graph = training_graph(testing::small_llama(), job);
  CHECK(outside_allocator(graph, job, parse_cluster("1xH200-141GB")) == 767 * kMiB);
  CHECK(outside_allocator(graph, job, parse_cluster("1xH100-80GB")) == card.context);
  CHECK(outside("8xH100-80GB", "full-shard") == card.context + card.nccl);
  CHECK(outside("2x8xH100-80GB", "hybrid-shard") == card.context + card.nccl + card.nccl);
}

TEST_CASE("the native allocator reserves by the order of addresses: the upper end counts and the band is told") {
  const Settings odd{{"seq_len", "1111"}};
  const Estimate native = estimate_of(testing::llama_8b(), "2xH200", {odd[0], {"allocator", "native"}});
  REQUIRE(native.ranks.size() == 1);
  const RankEstimate& rank = native.ranks[0];
  check_sums(rank);
  CHECK(rank.least_reserved < rank.peak_reserved);
  CHECK(mentions(native.assumptions, "by the order of cudaMalloc's addresses"));
  const Estimate expandable = estimate_of(testing::llama_8b(), "2xH200", {odd[0], {"allocator", "expandable"}});
  CHECK(expandable.ranks.at(0).least_reserved == expandable.ranks[0].peak_reserved);
  CHECK(expandable.ranks[0].peak_requested == rank.peak_requested);
  CHECK_FALSE(mentions(expandable.assumptions, "by the order of cudaMalloc's addresses"));
}

TEST_CASE("a job that fits only when the allocator gives back what is free and asks again is at risk") {
  const auto of = [](const std::string& memory) {
    return estimate_of(testing::llama_8b(), ("8xH100-80GB@" + memory).c_str(), {{"allocator", "native"}});
  };
  const Estimate whole = of("80GiB");
  REQUIRE(whole.verdict == Verdict::fits);
  bool seen = false;
  // Below the total there is a span in which retries help, and below that one in which they don't.
  for (std::int64_t mebibytes = whole.ranks[0].total.n / kMiB.n; mebibytes > 20480; mebibytes -= 256) {
    const Estimate tight = of(fmt::format("{:.4f}GiB", static_cast<double>(mebibytes) / 1024));
    if (tight.verdict == Verdict::does_not_fit) break;
    if (tight.ranks[0].total <= tight.capacity) continue;
    CHECK(tight.verdict == Verdict::at_risk);
    CHECK(tight.ranks[0].alloc_retries > 0);
    CHECK(tight.why.find("allocator retries: ") != std::string::npos);
    seen = true;
  }
  CHECK(seen);
}

TEST_CASE("a schedule that counts clipping itself has one clip phase a step") {
  const Estimate e = estimate_of(testing::llama_8b(), "8xA100-80GB",
                                 {{"runtime", "pytorch-fsdp2"}, {"modeling", "torchtitan"}, {"attention", "flash"}});
  REQUIRE_MESSAGE(e.ranks.size() == 1, e.why);
  CHECK(std::ranges::count(e.ranks[0].phases, Phase::clip, &PhasePeak::phase) == 2);
}

TEST_CASE("what NCCL takes for exchanges of gradients is said to be left out") {
  const auto says = [](const char* cluster, const char* dtype) {
    const Estimate e = estimate_of(testing::small_llama(), cluster, {{"gradient_dtype", dtype}});
    REQUIRE_MESSAGE(e.ranks.size() == 1, e.why);
    return mentions(e.assumptions, "without what NCCL allocates when ranks first exchange FP8 gradients");
  };
  CHECK(says("2xH100-80GB", "fp8-sent"));
  CHECK_FALSE(says("2xH100-80GB", "fp8"));
  CHECK_FALSE(says("2xcpu-4GiB", "fp8-sent"));
}

TEST_CASE("rank 0 that reads for all has an entry of its own, which differs while it loads") {
  // On CPU ranks, as no library's workspace, made later, is larger than what was staged.
  const Estimate e = estimate_of(testing::llama_8b(), "8xcpu-64GiB", {{"load", "rank0"}});
  REQUIRE_MESSAGE(e.ranks.size() == 2, e.why);
  CHECK(e.worst == 0);
  CHECK(e.ranks[0].last_rank == 0);
  CHECK(e.ranks[1].first_rank == 1);
  CHECK(e.ranks[1].last_rank == 7);
  CHECK(e.host_bytes == e.ranks[0].total + 7 * e.ranks[1].total);
  REQUIRE(e.ranks[0].phases.size() == e.ranks[1].phases.size());
  for (std::size_t i = 0; i < e.ranks[0].phases.size(); ++i) {
    const PhasePeak &first = e.ranks[0].phases[i], &rest = e.ranks[1].phases[i];
    CAPTURE(phase_name(first.phase));
    const Bytes staged = first.requested - rest.requested;
    if (first.phase == Phase::load) {
      CHECK(staged > 13 * kMiB);
      CHECK(staged <= 16 * kMiB);
    } else {
      CHECK(staged == Bytes{0});
    }
  }
  for (const char* sharding : {"no-shard", "full-shard"}) {
    const char* cluster = std::string_view(sharding) == "no-shard" ? "4xcpu-4GiB" : "1xcpu-4GiB";
    CHECK(estimate_of(testing::small_llama(), cluster, {{"load", "rank0"}, {"sharding", sharding}}).ranks.size() == 1);
  }
}

TEST_CASE("quantized weights take less between uses, and as much while they are used") {
  const auto peak_of = [](const char* quantization) {
    const Settings settings{
        {"freeze", "layers:0-31,embeddings"}, {"precision", "bf16-pure"}, {"quantization", quantization}};
    return estimate_of(testing::llama_8b(), "8xH100-80GB", settings).ranks.front();
  };
  const RankEstimate whole = peak_of("none"), quantized = peak_of("nf4-double");
  const auto of = [](const RankEstimate& rank, Category category) {
    return rank.breakdown.categories[static_cast<std::size_t>(category)].n;
  };
  // An eighth of the layers' matrices: 16 bits for each of 6,979,321,856 elements, and codes with their scales.
  CHECK(of(whole, Category::parameters) - of(quantized, Category::parameters) == 1'744'830'464 - 450'134'016);
  CHECK(of(whole, Category::unsharded_parameters) == of(quantized, Category::unsharded_parameters));
}

TEST_CASE("matrices that are trained take a byte on the card where host memory has their masters") {
  const auto estimate_with = [](const char* quantization) {
    const Settings settings{{"precision", "bf16-pure"}, {"offload", "optimizer"}, {"quantization", quantization}};
    return estimate_of(testing::llama_8b(), "8xH100-80GB,host=1TiB", settings);
  };
  const Estimate whole = estimate_with("none"), quantized = estimate_with("fp8");
  const auto of = [](const Estimate& e, Category category) {
    return e.ranks.front().breakdown.categories[static_cast<std::size_t>(category)].n;
  };
  // An eighth of 6,979,321,856 elements: a byte less for each, and 4 for each of 43,008 rows in 32 layers.
  CHECK(of(whole, Category::parameters) - of(quantized, Category::parameters) ==
        6'979'321'856 / 8 - 32 * 4 * 43'008 / 8);
  CHECK(of(whole, Category::gradients) == of(quantized, Category::gradients));
  // Masters and states are there in both; codes pass through two buffers.
  CHECK(quantized.host_bytes - whole.host_bytes == 2 * (218'103'808 + 4 * 43'008) * Bytes{1});
}

TEST_CASE("choices without rules are named, not guessed") {
  const std::vector<std::pair<Settings, std::string>> cases{
      {{{"runtime", "pytorch-fsdp2"}}, "--runtime pytorch-fsdp2"},
      {{{"modeling", "torchtitan"}}, "--modeling torchtitan"},
      {{{"method", "qlora"}, {"load", "rank0"}}, "--quantization nf4-double with --load rank0"},
      {{{"runtime", "pytorch-fsdp2"}, {"modeling", "torchtitan"}, {"method", "lora"}}, "--method lora"},
      {{{"runtime", "deepspeed"}, {"modeling", "transformers"}, {"method", "lora"}, {"dora", "on"}}, "--dora on"},
      {{{"precision", "fp8"}, {"compute_dtype", "fp16"}}, "--precision fp8 with --compute-dtype fp16"},
      {{{"storage_dtype", "fp16"}, {"state_dtype", "fp16"}}, "squares of gradients below 6e-8 would vanish"},
      {{{"output_dtype", "fp16"}}, "--output-dtype fp16 with --compute-dtype bf16"},
      {{{"precision", "bf16-mixed"}, {"state_dtype", "bf16"}, {"optimizer", "lion"}},
       "--optimizer lion with --storage-dtype fp32 and --state-dtype bf16"},
      {{{"precision", "fp32"}, {"state_dtype", "fp16"}}, "squares of gradients below 6e-8 would vanish"},
      {{{"optimizer", "adamw:deepspeed"}}, "use adamw:fused"},
      {{{"optimizer", "adamw:foreach"}, {"offload", "optimizer"}}, "use --optimizer adamw:fused"},
      {{{"optimizer", "adamw:loop"}, {"precision", "bf16-mixed"}, {"state_dtype", "bf16"}}, "or --state-dtype fp32"},
      {{{"optimizer", "adafactor"}, {"offload", "optimizer"}}, "leave out --offload"},
      {{{"runtime", "pytorch-fsdp2"}, {"modeling", "torchtitan"}, {"optimizer", "sgd"}}, "--optimizer sgd:fused"},
      {{{"offload", "optimizer,params"}}, "give one, and activations"},
      {{{"offload", "activations,activations:every:2"}}, "give one, and activations"},
      {{{"offload", "activations"}, {"runtime", "pytorch-fsdp2"}}, "--offload activations"},
      {{{"offload", "activations:every:2"}, {"runtime", "pytorch-fsdp2"}}, "--stack vramfit has it"},
      {{{"offload", "optimizer"}, {"runtime", "pytorch-fsdp2"}}, "--offload optimizer"},
      {{{"runtime", "pytorch-fsdp2"}, {"modeling", "torchtitan"}, {"checkpointing", "budget:50%"}},
       "--checkpointing budget:50%"},
      {{{"runtime", "pytorch-fsdp2"}, {"modeling", "torchtitan"}, {"checkpointing", "selective:glu"}},
       "--checkpointing selective:glu"},
      {{{"runtime", "pytorch-fsdp2"}, {"modeling", "transformers"}, {"reduce_dtype", "fp32"}},
       "--reduce-dtype fp32 (accelerate reduces in bf16: --reduce-dtype bf16)"},
      {{{"allocator", "backend:cudaMallocAsync"}}, "--allocator backend:cudaMallocAsync"},
      {{{"attention", "cudnn"}}, "--attention cudnn"},
      {{{"runtime", "pytorch-fsdp2"}, {"modeling", "torchtitan"}, {"label_smoothing", "0.1"}}, "--label-smoothing 0.1"},
      {{{"runtime", "pytorch-fsdp2"}, {"modeling", "transformers"}, {"z_loss", "1e-4"}}, "--z-loss 0.0001"},
      {{{"runtime", "pytorch-fsdp2"}, {"modeling", "torchtitan"}, {"ignore_index", "0"}}, "--ignore-index 0"},
      {{{"freeze", "layers:0"}, {"quantization", "nf4"}, {"load", "rank0"}}, "--quantization nf4 with --load rank0"},
      {{{"quantization", "fp8"}}, "that are trained with --offload none"},
      {{{"quantization", "fp8"}, {"offload", "activations"}}, "use --offload optimizer"},
      {{{"freeze", "layers:0"}, {"quantization", "fp8"}}, "--quantization int8 of frozen ones"},
  };
  for (const auto& [settings, feature] : cases) {
    const Estimate e = estimate_of(testing::llama_8b(), "4xH100-80GB", settings);
    CAPTURE(feature);
    CHECK(e.verdict == Verdict::not_modelled);
    CHECK_MESSAGE(e.why.find(feature) != std::string::npos, e.why);
    CHECK(e.ranks.empty());
  }
}

TEST_CASE("dropout of the configuration is said to be off") {
  ModelSpec spec = testing::small_llama();
  spec.dropout = 0.1;
  CHECK(mentions(estimate(spec, unresolved_job(), parse_cluster("1xcpu-4GiB"), {}).assumptions, "dropout off"));
}

TEST_CASE("what is offloaded is in host memory to the byte, and no longer on the card") {
  const Settings full{{"checkpointing", "full"}};
  const Estimate kept = estimate_of(testing::llama_8b(), "4xH100-80GB", full);
  const UnitLayout layout = lay_out_units(build_graph(testing::llama_8b(), loss_options(kept.job)), kept.job);
  Bytes elements, units, largest;
  for (const Unit& unit : layout.units) {
    elements += Bytes{unit.trainable_elements};
    units += Bytes{1};
    largest = std::max(largest, Bytes{4 * unit.trainable_elements});
  }
  const Bytes ids = Bytes{2 * 8 * kept.job.micro_batch * kept.job.sequence}, scalar{4}, count = 4 * units;
  const std::vector<std::pair<const char*, Bytes>> kinds{{"optimizer", 12 * elements + count + 2 * largest + scalar},
                                                         {"optimizer+gradients", 16 * elements + count + 2 * scalar},
                                                         {"params", 16 * elements + count + 2 * scalar}};
  CHECK(kept.host_bytes == 4 * (ids + scalar));
  Bytes before = kept.ranks.front().total;
  for (const auto& [kind, host] : kinds) {
    CAPTURE(kind);
    const Estimate e = estimate_of(testing::llama_8b(), "4xH100-80GB", {full.front(), {"offload", kind}});
    REQUIRE_MESSAGE(e.ranks.size() == 1, e.why);
    CHECK(e.host_bytes == 4 * (ids + scalar + host));
    CHECK(e.ranks.front().total < before);
    before = e.ranks.front().total;
  }
}

TEST_CASE("activations that leave are in host memory to the byte: of all layers but the last") {
  const Settings full{{"checkpointing", "full"}, {"seq_len", "4096"}, {"micro_batch", "2"}};
  const Estimate kept = estimate_of(testing::llama_8b(), "4xH100-80GB", full);
  Settings leaving = full;
  leaving.emplace_back("offload", "activations");
  const Estimate e = estimate_of(testing::llama_8b(), "4xH100-80GB", leaving);
  REQUIRE_MESSAGE(e.ranks.size() == 1, e.why);
  const Bytes input{std::int64_t{2} * 4096 * 4096 * 2};  // of a layer, in bf16
  CHECK(e.host_bytes == kept.host_bytes + 4 * (31 * input));
  const auto spared = [&](Phase phase) {
    const auto requested = [&](const Estimate& estimate) {
      const std::vector<PhasePeak>& phases = estimate.ranks.front().phases;
      return std::ranges::find_if(phases, [&](const PhasePeak& p) { return p.phase == phase && p.steady; })->requested;
    };
    return requested(kept) - requested(e);
  };
  // One is on its way while the last layer runs; none is left when its output has become a loss.
  CHECK(spared(Phase::forward) == 30 * input);
  CHECK(spared(Phase::loss) == 31 * input);
}

TEST_CASE("host memory is a budget of each node") {
  const Settings offloaded{{"checkpointing", "full"}, {"offload", "optimizer"}};
  const Estimate e = estimate_of(testing::llama_8b(), "2x4xH100-80GB", offloaded);
  REQUIRE_MESSAGE(e.verdict == Verdict::fits, e.why);
  Cluster cluster = parse_cluster("2x4xH100-80GB");
  cluster.host_memory = e.host_bytes;
  const Job job = testing::job_with(offloaded);
  CHECK(estimate(testing::llama_8b(), job, cluster, {}).verdict == Verdict::fits);
  cluster.host_memory = e.host_bytes - Bytes{1};
  const Estimate beyond = estimate(testing::llama_8b(), job, cluster, {});
  CHECK(beyond.verdict == Verdict::does_not_fit);
  CHECK_MESSAGE(beyond.why.starts_with("host memory: "), beyond.why);
}

}  // namespace vramfit
