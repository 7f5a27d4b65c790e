#include "program/stages/load_rows.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/process/instrumented.h"
#include "estimator/estimate.h"
#include "executor/meter/meter.h"
#include "job/sharding/sharding.h"
#include "tests/executor/cpu_units_torch.h"
#include "tests/support/config_file.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {

namespace {

struct World {
  int ranks = 1, shards = 1;
  std::string sharding;
};

Job job_on(const World& mesh, const std::string& precision, Load load) {
  Job job;
  job.precision = precision_named(precision);
  job.sharding = mesh.sharding;
  job.mesh = {.replicate = mesh.ranks / mesh.shards, .shard = mesh.shards};
  job.load = load;
  return job;
}

/// What a rank's units hold once they are loaded as the job says, by unit.
std::vector<std::vector<at::Tensor>> load(const Graph& graph, const Job& job, const UnitLayout& layout,
                                          ProcessGroups& groups, WeightSource& weights) {
  testing::UnitPrograms programs(graph, job, layout, groups);
  programs.load(job.load == Load::rank0 && groups.world().rank() == 0 ? load_staging(layout) : Bytes{0});
  const std::size_t all = programs.end_section();
  programs.begin([&](const at::Tensor* staging) {
    return job.load == Load::each
               ? each_reads(weights, groups.shard())
               : rank0_reads(weights, {.shard = groups.shard(), .replicate = groups.replicate(), .staging = staging});
  });
  programs.run(all);
  std::vector<std::vector<at::Tensor>> held;
  for (std::size_t u = 0; u < layout.units.size(); ++u) {
    const UnitState unit = programs.state(u);
    held.emplace_back();
    for (const at::Tensor* shard : unit.shards()) held.back().push_back(*shard);
    for (const at::Tensor* state : unit.states()) held.back().push_back(*state);  // none of a frozen unit
  }
  return held;
}

/// All shards of all ranks, rank by rank. Only rank 0 has weights to read where the job says so.
std::vector<at::Tensor> shards_of(const Graph& graph, const World& mesh, const std::string& precision, Load how) {
  const Job job = job_on(mesh, precision, how);
  const UnitLayout layout = lay_out_units(graph, job);
  std::map<std::pair<int, std::size_t>, at::Tensor> shards;
  std::mutex mutex;
  spawn_ranks(mesh.ranks, mesh.shards, [&](ProcessGroups& groups) {
    const int rank = groups.world().rank();
    const auto weights = how == Load::rank0 && rank != 0 ? sent_weights() : random_weights(7);
    const std::vector<std::vector<at::Tensor>> units = load(graph, job, layout, groups, *weights);
    const std::scoped_lock lock(mutex);
    for (std::size_t u = 0; u < units.size(); ++u) shards[{rank, u}] = units[u].front();
  });
  std::vector<at::Tensor> list;
  for (const auto& [place, shard] : shards) list.push_back(shard);
  return list;
}

void check_both_ways(const Graph& graph, const World& mesh, const std::string& precision) {
  CAPTURE(mesh.ranks);
  CAPTURE(mesh.shards);
  CAPTURE(mesh.sharding);
  CAPTURE(precision);
  const std::vector<at::Tensor> each = shards_of(graph, mesh, precision, Load::each);
  const std::vector<at::Tensor> sent = shards_of(graph, mesh, precision, Load::rank0);
  REQUIRE(each.size() == sent.size());
  REQUIRE_FALSE(each.empty());
  for (std::size_t i = 0; i < each.size(); ++i) CHECK(each[i].equal(sent[i]));
}

/// Units of one matrix each; nothing is trained, so that shards are all there is.
Graph matrices(const std::vector<std::vector<std::int64_t>>& shapes) {
  Graph graph;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    graph.parameters.push_back({.name = fmt::format("layers.{}.weight", i), .shape = shapes[i]});
    Segment segment;
    segment.name = fmt::format("layers.{}", i);
    segment.values = {{.name = "x", .shape = {kTokens, fixed(1)}}, {.name = "y", .shape = {kTokens, fixed(1)}}};
    Op op;
    op.kind = OpKind::linear;
    op.inputs = {0};
    op.parameters = {{static_cast<int>(i)}};
    op.outputs = {1};
    segment.ops = {op};
    segment.output = 1;
    graph.segments.push_back(segment);
  }
  return graph;
}

/// A bf16 file of zeros that takes no room on the disk.
std::string sparse_file(const testing::TemporaryDirectory& directory, const Graph& graph) {
  std::string header;
  std::int64_t offset = 0;
  for (const Parameter& parameter : graph.parameters) {
    const std::int64_t bytes = 2 * element_count(parameter);
    header += fmt::format("{}\"{}\":{{\"dtype\":\"BF16\",\"shape\":[{},{}],\"data_offsets\":[{},{}]}}",
                          header.empty() ? "" : ",", parameter.name, parameter.shape[0], parameter.shape[1], offset,
                          offset + bytes);
    offset += bytes;
  }
  const std::string bytes = testing::safetensors_bytes("{" + header + "}", "");
  std::string path = directory.write("model.safetensors", bytes);
  std::filesystem::resize_file(path, bytes.size() + static_cast<std::size_t>(offset));
  return path;
}

constexpr bool kResidentIsOurs = !kIsInstrumented;  // sanitizers keep freed memory, and shadows of all of it

/// Peak of this process's resident memory from here on.
void forget_resident_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace

TEST_CASE("a shard that rank 0 read for its rank equals to the bit the one that the rank read itself") {
  for (const char* model : {"llama", "gpt2"}) {
    const Graph graph = build_graph(testing::small_model(model), {});
    for (const Sharding& sharding : kShardings) {
      const std::string name(sharding.name);
      const bool is_hybrid = name.starts_with("hybrid");
      for (const int ranks : {1, 2, 4}) {
        if (is_hybrid && ranks < 4) continue;
        const int shards = is_hybrid ? 2 : (sharding.parameters ? ranks : 1);
        for (const char* precision : {"fp32", "bf16-pure"}) check_both_ways(graph, {ranks, shards, name}, precision);
      }
    }
  }
}

TEST_CASE("a parameter larger than the staging is sent in several parts, of which the last is shorter") {
  const Graph graph = matrices({{50'001, 100}, {3, 5}, {1, 7}});
  const UnitLayout layout = lay_out_units(graph, job_on({3, 3, "full-shard"}, "fp32", Load::rank0));
  const UnitParameter& large = layout.units[0].parameters[0];
  const std::int64_t rows = load_chunk_rows(large, 3);
  CHECK(rows < large.rows_per_rank);
  CHECK(large.rows_per_rank % rows != 0);
  CHECK(load_staging(layout) <= kLoadStaging);
  check_both_ways(graph, {3, 3, "full-shard"}, "fp32");
}

TEST_CASE("staging is no larger than the largest parameter, and there is none with one shard") {
  const Graph graph = matrices({{10, 3}, {7, 5}});
  const UnitLayout sharded = lay_out_units(graph, job_on({4, 4, "full-shard"}, "fp32", Load::rank0));
  CHECK(load_staging(sharded) == Bytes{8 * 5 * 4});  // 7 rows, padded to 2 on each of 4 ranks
  CHECK(load_staging(lay_out_units(graph, job_on({4, 1, "no-shard"}, "fp32", Load::rank0))) == Bytes{0});
  // A row that is larger than the staging goes alone.
  const Graph wide = matrices({{8, std::int64_t{16} << 20}});
  const UnitLayout rows = lay_out_units(wide, job_on({2, 2, "full-shard"}, "fp32", Load::rank0));
  CHECK(load_chunk_rows(rows.units[0].parameters[0], 2) == 1);
  CHECK(load_staging(rows) == Bytes{2 * (std::int64_t{16} << 20) * 4});
}

TEST_CASE("beyond the shards no more than the staging is held while 256 MiB are loaded, also of the process") {
  Meter::instance().install_cpu(Bytes{0});
  std::vector<std::vector<std::int64_t>> shapes(24, {1024, 4096});  // 8 MiB each as bf16
  shapes.push_back({16384, 2048});                                  // an embedding of 64 MiB
  shapes.push_back({2, 64});                                        // the only one that is trained, as one has to be
  const Graph graph = matrices(shapes);
  const testing::TemporaryDirectory directory;
  const std::string path = sparse_file(directory, graph);
  for (const Load how : {Load::each, Load::rank0}) {
    CAPTURE(static_cast<int>(how));
    const World mesh{2, 2, "full-shard"};
    Job job = job_on(mesh, "fp32", how);
    for (std::size_t i = 0; i + 1 < graph.parameters.size(); ++i) job.freeze.push_back(graph.parameters[i].name);
    const UnitLayout layout = lay_out_units(graph, job);
    Bytes all_shards{0};  // fp32, of both ranks of this process, and the states of what is trained
    for (const Unit& unit : layout.units) {
      const Bytes states = 2 * unit.trainable_elements * dtype_bytes(job.precision.state) + Bytes{4};
      all_shards += 2 * shard_bytes(unit);
      if (unit.trainable_elements > 0) all_shards += 2 * states;
    }
    const Bytes staging = how == Load::rank0 ? load_staging(layout) : Bytes{0};
    CHECK(all_shards > 512 * kMiB);
    CHECK(all_shards < 513 * kMiB);
    CHECK(staging <= 16 * kMiB);
    std::vector<std::vector<std::vector<at::Tensor>>> held(2);
    Bytes metered{0}, resident{0};
    spawn_ranks(2, 2, [&](ProcessGroups& groups) {
      const auto rank = static_cast<std::size_t>(groups.world().rank());
      const auto weights = how == Load::rank0 && rank != 0 ? sent_weights() : safetensors_weights(path, graph);
      groups.world().barrier();
      if (rank == 0) {
        forget_resident_peak();
        metered = Meter::instance().current();
        resident = resident_bytes().now;
        Meter::instance().reset();
      }
      groups.world().barrier();
      held[rank] = load(graph, job, layout, groups, *weights);
      groups.world().barrier();
    });
    // Rank 0 may let go of its staging before the other rank has made its last states.
    CHECK(Meter::instance().peak() - metered <= all_shards + staging);
    CHECK(Meter::instance().peak() - metered > all_shards + staging - kMiB);
    if (!kResidentIsOurs) continue;
    // What is resident besides: the buffers that numbers are converted in, and those of the sockets.
    const Bytes beyond = resident_bytes().peak - resident - all_shards;
    CHECK(beyond <= staging + 16 * kMiB);
    CHECK(beyond < 128 * kMiB);  // the largest unit of the full model
  }
}

}  // namespace vramfit
