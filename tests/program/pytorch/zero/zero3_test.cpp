// transformers' Trainer with DeepSpeed's ZeRO-3. That its step is what DeepSpeed does is tested in
// tests/oracle/hf_trainer, event by event.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "job/stacks/stacks.h"
#include "model_specs/graph.h"
#include "program/make_program.h"
#include "program/not_modelled.h"
#include "program/readers/check.h"
#include "program/readers/host_bytes.h"
#include "program/stages/adapters.h"
#include "tests/support/models.h"

namespace vramfit {
namespace {

using ZeroSettings = std::vector<std::pair<std::string, std::string>>;

Job zero3_job(const ZeroSettings& settings, const Cluster& cluster) {
  Job job = on_stack(unresolved_job(), defaults_of(stack_named("deepspeed"), cluster));
  job_field_named("sharding").set(job, "full-shard");
  for (const auto& [name, value] : settings) job_field_named(name).set(job, value);
  std::vector<std::string> notes;
  return resolve_job(job, testing::small_llama(), cluster, notes);
}

program::Program zero3_program(const ZeroSettings& settings, const std::string& gpus) {
  const Cluster cluster = parse_cluster(gpus);
  const Job job = zero3_job(settings, cluster);
  require_rules(job, cluster);
  return program::make_program(
      {.graph = build_graph(testing::small_llama(), {}), .job = job, .device = cluster.card.device, .coords = {}});
}

/// Collectives of one kind in a micro-batch that ends a step: of the first step, and of a later one.
std::pair<int, int> in_first_and_later(const program::Program& program, program::Collective collective) {
  std::map<program::Section::Steps, int> counts;
  for (const program::Section& section : program.sections) {
    if (section.kind != program::Section::Kind::last) continue;
    for (std::size_t i = section.begin; i < section.end; ++i) {
      const auto* start = std::get_if<program::Start>(&program.main.instructions[i]);
      counts[section.steps] += static_cast<int>(start != nullptr && start->collective == collective);
    }
  }
  return {counts[program::Section::Steps::first], counts[program::Section::Steps::later]};
}

}  // namespace

TEST_CASE("programs of ZeRO-3 are sound") {
  for (const char* gpus : {"1xH100-80GB", "3xA100-80GB", "2x8xH100-80GB"}) {
    for (const char* checkpointing : {"none", "full"}) {
      for (const char* accumulation : {"1", "2", "3", "5"}) {
        for (const char* bucket : {"20000", "60000", "1000000000"}) {
          CAPTURE(gpus);
          CAPTURE(checkpointing);
          CAPTURE(accumulation);
          CAPTURE(bucket);
          const ZeroSettings settings{
              {"grad_accum", accumulation}, {"bucket_bytes", bucket}, {"checkpointing", checkpointing}};
          CHECK(program::fault_of(zero3_program(settings, gpus)).value_or("") == "");
        }
      }
    }
  }
}

TEST_CASE("in fp16 a step looks through all gradients of the rank for infinities, and trains on cards without bf16") {
  const auto looks = [](const ZeroSettings& settings, const char* gpus) {
    const program::Program program = zero3_program(settings, gpus);
    CHECK(program::fault_of(program).value_or("") == "");
    return std::ranges::count_if(program.main.buffers, [&](const program::Buffer& buffer) {
      return program.labels[static_cast<std::size_t>(buffer.label)].ends_with("is it infinite");
    });
  };
  for (const char* gpus : {"1xH100-80GB", "3xA100-80GB", "2xT4"}) {
    CAPTURE(gpus);
    for (const char* accumulation : {"1", "3"}) {
      CHECK(looks({{"precision", "fp16-mixed"}, {"grad_accum", accumulation}}, gpus) > 0);
    }
  }
  const auto in_bf16 = looks({}, "3xA100-80GB"), in_fp16 = looks({{"precision", "fp16-mixed"}}, "3xA100-80GB");
  CHECK(in_fp16 > in_bf16);
}

TEST_CASE("programs are sound with what is offloaded, on one stream, and with any sizes") {
  for (const char* gpus : {"1xH100-80GB", "3xA100-80GB"}) {
    for (const char* offload : {"none", "optimizer", "params", "params:pageable", "params:pageable,optimizer"}) {
      for (const char* sizes : {"default", "auto", "max_live_parameters=0,max_reuse_distance=0,sub_group_size=0",
                                "prefetch_bucket_size=0,param_persistence_threshold=0"}) {
        for (const char* precision : {"bf16-mixed", "fp16-mixed"}) {
          for (const char* overlap : {"on", "off"}) {
            CAPTURE(gpus);
            CAPTURE(offload);
            CAPTURE(sizes);
            CAPTURE(precision);
            CAPTURE(overlap);
            const ZeroSettings settings{{"offload", offload},      {"zero3_sizes", sizes},    {"precision", precision},
                                        {"overlap_comm", overlap}, {"bucket_bytes", "60000"}, {"grad_accum", "2"}};
            const program::Program program = zero3_program(settings, gpus);
            CHECK(program::fault_of(program).value_or("") == "");
            for (const program::Buffer& buffer : program.main.buffers) {
              if (buffer.space == program::Space::pinned) CHECK(pinned_by_pool(buffer.bytes) == buffer.bytes);
              if (std::string_view(overlap) == "off" && buffer.space == program::Space::device) {
                CHECK(buffer.stream == Stream::compute);
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("with offload the card has neither states nor, with params, parts between gathers") {
  const auto on_card = [](const char* offload, std::string_view what) {
    const program::Program program = zero3_program({{"offload", offload}}, "2xH100-80GB");
    return std::ranges::count_if(program.main.buffers, [&](const program::Buffer& buffer) {
      return buffer.space == program::Space::device &&
             program.labels[static_cast<std::size_t>(buffer.label)].find(what) != std::string::npos;
    });
  };
  CHECK(on_card("none", "exp_avg") > 0);
  CHECK(on_card("optimizer", "exp_avg") == 0);
  CHECK(on_card("optimizer", "master") == 0);
  CHECK(on_card("optimizer", "parts of all parameters") == 1);
  CHECK(on_card("params", "parts of all parameters") == 0);
  CHECK(host_bytes(zero3_program({}, "2xH100-80GB")).n == 0);
  CHECK(host_bytes(zero3_program({{"offload", "params"}}, "2xH100-80GB")) >
        host_bytes(zero3_program({{"offload", "optimizer"}}, "2xH100-80GB")));
}

TEST_CASE("gradients and parts are pinned each by their own setting, and the flat parts in any case") {
  const auto pinned = [](const char* offload, std::string_view what) {
    const program::Program program = zero3_program({{"offload", offload}}, "2xH100-80GB");
    return std::ranges::any_of(program.main.buffers, [&](const program::Buffer& buffer) {
      return buffer.space == program::Space::pinned &&
             program.labels[static_cast<std::size_t>(buffer.label)].find(what) != std::string::npos;
    });
  };
  for (const auto& [offload, has_gradients, has_parts] :
       {std::tuple{"params", true, true}, std::tuple{"params:pageable", false, false},
        std::tuple{"params,optimizer:pageable", false, true}, std::tuple{"params:pageable,optimizer", true, false}}) {
    CAPTURE(offload);
    CHECK(pinned(offload, "gradients of the parts") == has_gradients);
    CHECK(pinned(offload, "gradient of ") == has_gradients);
    CHECK(pinned(offload, "part of ") == has_parts);
    CHECK(pinned(offload, "parts of all parameters"));
  }
  CHECK(pinned("optimizer", "gradients of the parts"));
  CHECK_FALSE(pinned("optimizer:pageable", "gradient"));
}

TEST_CASE("what a forward and a backward use is gathered ahead, and in fewer collectives, once the order is known") {
  const auto [first, later] = in_first_and_later(zero3_program({}, "4xH100-80GB"), program::Collective::all_gather);
  CHECK(later > 0);
  CHECK(later < first);
}

TEST_CASE("adapters stay fp32 beside a base in 16 bits, and their gradients are reduced in 16") {
  for (const char* precision : {"bf16-mixed", "fp16-mixed"}) {
    for (const char* offload : {"none", "optimizer", "params"}) {
      for (const char* checkpointing : {"none", "full"}) {
        for (const char* gpus : {"1xH100-80GB", "3xH100-80GB"}) {
          CAPTURE(precision);
          CAPTURE(offload);
          CAPTURE(checkpointing);
          CAPTURE(gpus);
          const Cluster cluster = parse_cluster(gpus);
          const Job job = zero3_job({{"method", "lora"},
                                     {"precision", precision},
                                     {"offload", offload},
                                     {"checkpointing", checkpointing},
                                     {"bucket_bytes", "200"},
                                     {"grad_accum", "2"},
                                     {"zero3_sizes", "param_persistence_threshold=0"}},
                                    cluster);
          require_rules(job, cluster);
          const program::Program program = program::make_program({.graph = training_graph(testing::small_llama(), job),
                                                                  .job = job,
                                                                  .device = cluster.card.device,
                                                                  .coords = {}});
          CHECK(program::fault_of(program).value_or("") == "");
          int converted = 0;
          for (const program::Buffer& buffer : program.main.buffers) {
            const std::string_view label = program.labels[static_cast<std::size_t>(buffer.label)];
            converted += static_cast<int>(label.ends_with("large gradient, converted"));
          }
          CHECK(converted > 0);  // larger than the bucket
        }
      }
    }
  }
}

TEST_CASE("one GPU gathers and reduces nothing") {
  const program::Program program = zero3_program({}, "1xH100-80GB");
  for (const auto collective : {program::Collective::all_gather, program::Collective::all_reduce}) {
    const auto [first, later] = in_first_and_later(program, collective);
    CAPTURE(static_cast<int>(collective));
    CHECK(first == later);
  }
}

TEST_CASE("what ZeRO-3 has no rules for is refused by name") {
  const Cluster two = parse_cluster("2xH100-80GB");
  for (const auto& [name, value, says] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"sharding", "hybrid-shard", "--sharding hybrid-shard"},
           {"offload", "activations",
            "--offload activations with --runtime deepspeed (--offload optimizer is, or params, each also with "
            ":pageable)"},
           {"offload", "optimizer+gradients", "--offload optimizer+gradients with --runtime deepspeed"},
           {"optimizer", "lion", "--optimizer lion"},
           {"precision", "fp32", "--precision fp32"}}) {
    CAPTURE(name);
    CHECK_THROWS_WITH_AS(require_rules(zero3_job({{name, value}}, two), two), doctest::Contains(says.c_str()),
                         NotModelled);
  }
  CHECK_THROWS_WITH_AS(require_rules(zero3_job({{"sharding", "shard-grad-op"}, {"zero3_sizes", "auto"}}, two), two),
                       doctest::Contains("--zero3-sizes with --sharding shard-grad-op"), NotModelled);
}

TEST_CASE("sizes are as DeepSpeed's configuration calls them, and auto is known with the model") {
  const Cluster two = parse_cluster("2xH100-80GB");
  const std::int64_t hidden = testing::small_llama().hidden_size;
  const Job job = zero3_job({{"zero3_sizes", "auto"}}, two);
  CHECK(job.zero3_sizes.param_persistence_threshold == 10 * hidden);
  CHECK(job.zero3_sizes.prefetch_bucket_size == static_cast<std::int64_t>(0.9 * static_cast<double>(hidden * hidden)));
  CHECK(job.zero3_sizes.sub_group_size == Zero3Sizes{}.sub_group_size);
  const JobField& field = job_field_named("zero3_sizes");
  Job said = job;
  for (const char* text : {"auto", "max_live_parameters=0,sub_group_size=5", "prefetch_bucket_size=auto"}) {
    field.set(said, text);
    CHECK(field.get(said) == text);
  }
  field.set(said, "default");
  CHECK(field.get(said).empty());
  CHECK_THROWS_WITH_AS(field.set(said, "live=0"), doctest::Contains("max_live_parameters"), InputError);
  CHECK_THROWS_WITH_AS(field.set(said, "sub_group_size=auto"), doctest::Contains("give a number"), InputError);
  CHECK_THROWS_AS(field.set(said, "sub_group_size"), InputError);
}

}  // namespace vramfit
