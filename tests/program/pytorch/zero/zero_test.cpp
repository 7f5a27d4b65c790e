// transformers' Trainer with DeepSpeed's ZeRO-1 and ZeRO-2. That its step is what DeepSpeed does is tested in
// tests/oracle/hf_trainer, event by event.
#include "program/pytorch/zero/zero.h"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "job/cluster/reduce_scratch.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "job/stacks/stacks.h"
#include "model_specs/graph.h"
#include "program/make_program.h"
#include "program/not_modelled.h"
#include "program/readers/check.h"
#include "program/readers/host_bytes.h"
#include "program/stages/adapters.h"
#include "program/stages/trainable.h"
#include "tests/support/models.h"

namespace vramfit {
namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;
using eager::heaviest_rank;
using eager::kept_elements;
using eager::partition_of;

Job asked(const Settings& settings, const Cluster& cluster) {
  Job job = on_stack(unresolved_job(), defaults_of(stack_named("deepspeed"), cluster));
  job_field_named("sharding").set(job, "shard-grad-op");
  for (const auto& [name, value] : settings) job_field_named(name).set(job, value);
  std::vector<std::string> notes;
  return resolve_job(job, testing::small_llama(), cluster, notes);
}

program::Program recorded(const Settings& settings, const std::string& gpus) {
  const Cluster cluster = parse_cluster(gpus);
  const Job job = asked(settings, cluster);
  require_rules(job, cluster);
  return program::make_program(
      {.graph = build_graph(testing::small_llama(), {}), .job = job, .device = cluster.card.device, .coords = {}});
}

int collectives(const program::Program& program, program::Collective collective) {
  int count = 0;
  for (const program::Instruction& instruction : program.main.instructions) {
    const auto* start = std::get_if<program::Start>(&instruction);
    count += static_cast<int>(start != nullptr && start->collective == collective);
  }
  return count;
}

}  // namespace

TEST_CASE("partitions are equal, and begin at four bytes") {
  for (const std::int64_t ranks : {1, 2, 3, 8}) {
    const std::vector<std::int64_t> sizes{7, 100, 13};
    const eager::Partition last = partition_of(sizes, ranks, ranks - 1);
    CHECK(last.elements % 2 == 0);
    CHECK(last.begin == (ranks - 1) * last.elements);
    CHECK(last.begin + last.elements >= 120);
    CHECK((last.elements - 2) * ranks < 120);
  }
}

TEST_CASE("a rank keeps gradients of all parameters of which it has a part, whole") {
  const std::vector<std::vector<std::int64_t>> sizes{{10, 90, 20}, {4, 4}};
  CHECK(kept_elements(sizes, 1, 0) == 128);
  CHECK(kept_elements(sizes, 3, 0) == 10 + 90 + 4);  // 40 and 4 each
  CHECK(kept_elements(sizes, 3, 1) == 90 + 4);
  CHECK(kept_elements(sizes, 3, 2) == 90 + 20);  // and nothing but padding
  CHECK(heaviest_rank(sizes, 3) == 2);
}

TEST_CASE("programs are sound") {
  for (const char* sharding : {"shard-optimizer", "shard-grad-op"}) {
    for (const char* gpus : {"1xH100-80GB", "3xA100-80GB", "2x8xH100-80GB"}) {
      for (const char* accumulation : {"1", "2", "4"}) {
        for (const char* bucket : {"20000", "60000", "1000000000"}) {
          const Settings settings{{"sharding", sharding}, {"grad_accum", accumulation}, {"bucket_bytes", bucket}};
          CAPTURE(sharding);
          CAPTURE(gpus);
          CAPTURE(accumulation);
          CAPTURE(bucket);
          CHECK(program::fault_of(recorded(settings, gpus)).value_or("") == "");
        }
      }
    }
  }
  CHECK(!program::fault_of(recorded({{"checkpointing", "full"}, {"optimizer", "adamw:foreach"}}, "4xH100-80GB")));
}

TEST_CASE("ZeRO-2 reduces in every micro-batch, ZeRO-1 in a step's last, and both gather once for each group") {
  const auto count = [](const char* sharding, const char* accumulation, program::Collective collective) {
    return collectives(recorded({{"sharding", sharding}, {"grad_accum", accumulation}}, "2xH100-80GB"), collective);
  };
  using enum program::Collective;
  CHECK(count("shard-optimizer", "2", all_reduce) == count("shard-optimizer", "1", all_reduce));
  CHECK(count("shard-grad-op", "2", all_reduce) > count("shard-grad-op", "1", all_reduce));
  for (const char* sharding : {"shard-optimizer", "shard-grad-op"}) {
    CHECK(count(sharding, "2", all_gather) - count(sharding, "1", all_gather) == 0);
  }
}

TEST_CASE("an access of a parameter counts its own bytes and not those of all weights") {
  const program::Program program = recorded({}, "2xH100-80GB");
  int accesses = 0;
  for (const program::Instruction& instruction : program.main.instructions) {
    const auto* run = std::get_if<program::Run>(&instruction);
    if (run == nullptr || program::run_name(program, *run) != "aten::mm") continue;
    for (std::uint32_t i = 0; i < run->accesses.count; ++i) {
      const program::Access& access = program.main.accesses[run->accesses.first + i];
      const program::Buffer& buffer = program.main.buffers[static_cast<std::size_t>(access.buffer)];
      if (program.labels[static_cast<std::size_t>(buffer.label)] != "zero: weights of group 0") continue;
      ++accesses;
      REQUIRE(access.view >= 0);
      CHECK(program.views[static_cast<std::size_t>(access.view)].rows < buffer.bytes.n / 2 / 3);
    }
  }
  CHECK(accesses > 0);
}

TEST_CASE("what has no rules is refused by name") {
  const Cluster two = parse_cluster("2xH100-80GB");
  for (const auto& [name, value, says] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"sharding", "hybrid-shard", "--sharding hybrid-shard"},
           {"sharding", "no-shard", "--sharding no-shard"},
           {"offload", "params",
            "--offload params with --runtime deepspeed (--offload optimizer is, or optimizer:pageable)"},
           {"optimizer", "lion",
            "--optimizer lion:fused (--optimizer adamw is, and without offload adamw-8bit:fused, adamw-8bit:paged, "
            "adamw:paged, adafactor and sgd)"},
           {"optimizer", "adamw-8bit:torchao", "--optimizer adamw-8bit:torchao"},
           {"optimizer", "adamw-4bit", "--optimizer adamw-4bit"},
           {"precision", "fp32", "--precision fp32 with --runtime deepspeed (--precision bf16-mixed or fp16-mixed is)"},
           {"precision", "bf16-pure",
            "--precision bf16-pure with --runtime deepspeed (--precision bf16-mixed or fp16-mixed is)"},
           {"reduce_dtype", "fp32", "--reduce-dtype fp32 (DeepSpeed reduces in bf16: --reduce-dtype bf16)"},
           {"modeling", "accelerate", "--modeling accelerate (--modeling transformers, and TRL's trainers are)"},
           {"storage_dtype", "bf16", "--storage-dtype bf16"}}) {
    CAPTURE(name);
    CHECK_THROWS_WITH_AS(require_rules(asked({{name, value}}, two), two), doctest::Contains(says.c_str()), NotModelled);
  }
}

TEST_CASE("bitsandbytes' and transformers' optimizers have states of a rank's partitions, embeddings among them") {
  for (const char* sharding : {"shard-optimizer", "shard-grad-op", "full-shard"}) {
    const auto states_with = [&](const char* optimizer) {
      const program::Program program = recorded({{"sharding", sharding}, {"optimizer", optimizer}}, "2xH100-80GB");
      CHECK(program::fault_of(program).value_or("") == "");
      std::map<std::string, std::int64_t> bytes;  // by what the label says of the state
      for (const program::Buffer& buffer : program.main.buffers) {
        const std::string& label = program.labels[static_cast<std::size_t>(buffer.label)];
        if (buffer.category == Category::optimizer_state) bytes[label.substr(0, label.find(" of "))] += buffer.bytes.n;
      }
      return bytes;
    };
    CAPTURE(sharding);
    const std::map<std::string, std::int64_t> wide = states_with("adamw"), of_bytes = states_with("adamw-8bit");
    const std::int64_t elements = wide.at("adamw: exp_avg") / 4;
    CHECK(of_bytes.at("adamw: exp_avg") < elements + 4 * 4096);  // vectors, as they are few, stay in fp32
    CHECK(of_bytes.at("adamw: signed codes") == 4 * 256);        // once for all groups
    CHECK(states_with("adamw-8bit:paged") == of_bytes);          // wherever they are
    const std::map<std::string, std::int64_t> factored = states_with("adafactor");
    CHECK(factored.at("adafactor: exp_avg_sq") == 4 * elements);  // partitions are vectors: there are no rows
    CHECK(!factored.contains("adafactor: exp_avg_sq_row"));
    CHECK(states_with("sgd").at("sgd: momentum_buffer") == 4 * elements);
  }
}

TEST_CASE("with offload accelerate puts DeepSpeed's Adam in the place of other optimizers") {
  const Cluster two = parse_cluster("2xH100-80GB");
  for (const char* optimizer : {"adamw-8bit", "adamw-8bit:paged", "adamw:paged", "adafactor", "sgd"}) {
    CAPTURE(optimizer);
    CHECK_THROWS_WITH_AS(require_rules(asked({{"optimizer", optimizer}, {"offload", "optimizer"}}, two), two),
                         doctest::Contains("accelerate has DeepSpeed's Adam of the CPU in its place"), NotModelled);
    CHECK_THROWS_WITH_AS(require_rules(asked({{"optimizer", optimizer}, {"offload", "activations"}}, two), two),
                         doctest::Contains("--offload activations with --runtime deepspeed (--offload optimizer is"),
                         NotModelled);
  }
}

TEST_CASE("a reduction goes in parts over what 32 bits don't address") {
  constexpr std::int64_t kMost = std::int64_t{1} << 29;  // numbers of 4 bytes: the last one's offset is 2^31 - 4
  CHECK(indexed_parts(0, 4) == std::vector<std::int64_t>{0});
  CHECK(indexed_parts(kMost, 4) == std::vector<std::int64_t>{kMost});
  CHECK(indexed_parts(kMost + 1, 4) == std::vector<std::int64_t>{kMost / 2, kMost / 2 + 1});
  CHECK(indexed_parts(2 * kMost + 1, 4) == std::vector<std::int64_t>{kMost, kMost / 2, kMost / 2 + 1});
  CHECK(indexed_parts(kMost, 8) == std::vector<std::int64_t>{kMost / 2, kMost / 2});
}

TEST_CASE("what is frozen under adapters is in no flat tensor, and a rank's partition is of adapters alone") {
  const Cluster two = parse_cluster("2xH100-80GB");
  for (const char* sharding : {"shard-grad-op", "shard-optimizer"}) {
    CAPTURE(sharding);
    const Settings settings{{"method", "lora"}, {"lora_rank", "4"}, {"sharding", sharding}};
    const Job job = asked(settings, two);
    require_rules(job, two);
    const Graph graph = training_graph(testing::small_llama(), job);
    const std::vector<bool> trained = trainable_parameters(graph, job);
    std::int64_t elements = 0;
    for (std::size_t p = 0; p < trained.size(); ++p) {
      if (trained[p]) elements += element_count(graph.parameters[p]);
    }
    const program::Program program =
        program::make_program({.graph = graph, .job = job, .device = two.card.device, .coords = {}});
    CHECK(program::fault_of(program).value_or("") == "");
    int flat = 0, partitions = 0;
    for (const program::Buffer& buffer : program.main.buffers) {
      const std::string& label = program.labels[static_cast<std::size_t>(buffer.label)];
      if (label.starts_with("zero: weights of group")) {
        ++flat;
        CHECK(buffer.bytes.n == 2 * elements);
      }
      if (label.starts_with("zero: partition of group")) {
        ++partitions;
        CHECK(buffer.bytes.n == 4 * elements / 2);
      }
    }
    CHECK(flat == 1);  // adapters are matrices
    CHECK(partitions == 1);
  }
  CHECK_NOTHROW(require_rules(asked({{"method", "lora"}, {"frozen_dtype", "bf16"}}, two), two));
  const Job of_4_bits = asked({{"method", "qlora"}}, two);
  CHECK_NOTHROW(require_rules(of_4_bits, two));
  CHECK(of_4_bits.quantization == "nf4-double");
  CHECK(of_4_bits.frozen_dtype.value_or(Dtype::bf16) == Dtype::bf16);  // converted, whatever they are prepared in
  CHECK_THROWS_WITH_AS(require_rules(asked({{"method", "lora"}, {"frozen_dtype", "fp32"}}, two), two),
                       doctest::Contains("DeepSpeed converts frozen weights to bf16"), NotModelled);
  const Job of_trl = asked({{"modeling", "trl"}, {"method", "qlora"}, {"frozen_dtype", "fp16"}}, two);
  CHECK_THROWS_WITH_AS(require_rules(of_trl, two), doctest::Contains("--frozen-dtype fp32 and bf16 are"), NotModelled);
}

TEST_CASE("gradients are reduced in the model's own type, unless another one is asked for") {
  CHECK(asked({}, parse_cluster("2xH100-80GB")).precision.reduce == Dtype::bf16);
  CHECK_NOTHROW(
      require_rules(asked({{"reduce_dtype", "bf16"}}, parse_cluster("2xH100-80GB")), parse_cluster("2xH100-80GB")));
}

TEST_CASE("fp16 has the buffers of bf16, and trains on cards that have no bf16") {
  const auto bytes_of = [](const char* precision) {
    std::vector<std::int64_t> bytes;
    for (const program::Buffer& buffer : recorded({{"precision", precision}}, "2xH100-80GB").main.buffers) {
      bytes.push_back(buffer.bytes.n);
    }
    return bytes;
  };
  CHECK(bytes_of("fp16-mixed") == bytes_of("bf16-mixed"));
  const Cluster cards = parse_cluster("2xT4");
  CHECK_NOTHROW(require_rules(asked({}, cards), cards));
  CHECK(!program::fault_of(recorded({}, "2xT4")));
  CHECK_THROWS_WITH_AS(require_rules(asked({{"precision", "bf16-mixed"}}, cards), cards),
                       doctest::Contains("(--precision fp16-mixed is)"), Error);
}

TEST_CASE("with offload what the optimizer has is in host memory, pinned in powers of two") {
  const auto on_card = [](const program::Program& program, const char* category_of) {
    std::int64_t bytes = 0;
    for (const program::Buffer& buffer : program.main.buffers) {
      const std::string& label = program.labels[static_cast<std::size_t>(buffer.label)];
      if (buffer.space == program::Space::device && label.find(category_of) != std::string::npos)
        bytes += buffer.bytes.n;
    }
    return bytes;
  };
  for (const char* sharding : {"shard-optimizer", "shard-grad-op"}) {
    for (const char* accumulation : {"1", "3"}) {
      for (const char* overlap : {"off", "on"}) {
        CAPTURE(sharding);
        CAPTURE(accumulation);
        CAPTURE(overlap);
        const Settings settings{
            {"sharding", sharding}, {"grad_accum", accumulation}, {"overlap_comm", overlap}, {"bucket_bytes", "60000"}};
        const program::Program without = recorded(settings, "2xH100-80GB");
        Settings with = settings;
        with.emplace_back("offload", "optimizer");
        const program::Program program = recorded(with, "2xH100-80GB");
        CHECK(program::fault_of(without).value_or("") == "");
        CHECK(program::fault_of(program).value_or("") == "");
        CHECK(on_card(without, "exp_avg") > 0);
        CHECK(on_card(program, "exp_avg") == 0);
        CHECK(host_bytes(without).n == 0);
        CHECK(host_bytes(program).n > 0);
        for (const program::Buffer& buffer : program.main.buffers) {
          if (buffer.space == program::Space::pinned) CHECK(pinned_by_pool(buffer.bytes) == buffer.bytes);
        }
      }
    }
  }
}

TEST_CASE("without pinned memory the host has exactly what is asked for, and the card the same") {
  const auto on_card = [](const program::Program& program) {
    std::vector<std::pair<std::string, std::int64_t>> buffers;
    for (const program::Buffer& buffer : program.main.buffers) {
      if (buffer.space != program::Space::device) continue;
      buffers.emplace_back(program.labels[static_cast<std::size_t>(buffer.label)], buffer.bytes.n);
    }
    return buffers;
  };
  for (const char* sharding : {"shard-optimizer", "shard-grad-op"}) {
    for (const char* accumulation : {"1", "3"}) {
      CAPTURE(sharding);
      CAPTURE(accumulation);
      const auto with = [&](const char* offload) {
        return recorded({{"sharding", sharding}, {"grad_accum", accumulation}, {"offload", offload}}, "2xH100-80GB");
      };
      const program::Program pinned = with("optimizer"), pageable = with("optimizer:pageable");
      CHECK(program::fault_of(pageable).value_or("") == "");
      CHECK(on_card(pageable) == on_card(pinned));
      CHECK(host_bytes(pageable) < host_bytes(pinned));
      for (const program::Buffer& buffer : pageable.main.buffers) CHECK(buffer.space != program::Space::pinned);
    }
  }
}

TEST_CASE("overlapped reductions have a bucket more, and a stream of their own") {
  const auto streams_and_buckets = [](const char* overlap) {
    int buckets = 0;
    bool has_stream = false;
    for (const program::Buffer& buffer :
         recorded({{"overlap_comm", overlap}, {"bucket_bytes", "60000"}}, "2xH100-80GB").main.buffers) {
      buckets += static_cast<int>(buffer.category == Category::communication && buffer.bytes.n == 60000);
      has_stream |= buffer.stream == Stream::reduce_scatter;
    }
    return std::pair{has_stream, buckets};
  };
  CHECK(streams_and_buckets("off") == std::pair{false, 1});
  CHECK(streams_and_buckets("on") == std::pair{true, 2});
}

TEST_CASE("of two reasons the one that no other stage would take away is given") {
  const Cluster two = parse_cluster("2xH100-80GB");
  for (const auto& [name, value, says] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"optimizer", "lion", "--optimizer lion"}, {"precision", "fp32", "--precision fp32"}}) {
    CAPTURE(name);
    CHECK_THROWS_WITH_AS(require_rules(asked({{"sharding", "full-shard"}, {name, value}}, two), two),
                         doctest::Contains(says.c_str()), NotModelled);
  }
}

TEST_CASE("what is DeepSpeed's alone is refused elsewhere") {
  const Cluster two = parse_cluster("2xH100-80GB");
  for (const char* runtime : {"vramfit", "pytorch", "pytorch-fsdp2"}) {
    CHECK_THROWS_WITH_AS(require_rules(asked({{"runtime", runtime}, {"sharding", "shard-optimizer"}}, two), two),
                         doctest::Contains("--stack deepspeed has it"), NotModelled);
  }
  for (const auto& [runtime, modeling] : {std::pair{"vramfit", "vramfit"}, {"pytorch-fsdp2", "transformers"}}) {
    const Settings settings{
        {"runtime", runtime}, {"modeling", modeling}, {"sharding", "full-shard"}, {"overlap_comm", "on"}};
    CHECK_THROWS_WITH_AS(require_rules(asked(settings, two), two), doctest::Contains("--overlap-comm on"), NotModelled);
  }
}

}  // namespace vramfit
