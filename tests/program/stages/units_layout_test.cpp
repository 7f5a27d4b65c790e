#include "program/stages/units_layout.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "program/stages/quantized_parts.h"
#include "tests/support/models.h"
#include "tests/support/tiny_graph.h"

namespace vramfit {

using testing::tiny_graph;
using testing::tiny_job;

TEST_CASE("embedding, blocks and head are units of their own, in the order of the chain") {
  const UnitLayout layout = lay_out_units(tiny_graph(), tiny_job());
  REQUIRE(layout.units.size() == 4);
  CHECK(layout.units[0].name == "embed");
  CHECK(layout.units[1].name == "layers.0");
  CHECK(layout.units[3].name == "head");
  CHECK(layout.units_of_segment[4].empty());
}

TEST_CASE("without wrapped embeddings the embedding and the head share the root unit") {
  Job job = tiny_job();
  job.wrap_embeddings = false;
  const UnitLayout layout = lay_out_units(tiny_graph(), job);
  REQUIRE(layout.units.size() == 3);
  CHECK(layout.units[0].name == "root");
  CHECK(layout.units_of_segment.front() == layout.units_of_segment[3]);
}

TEST_CASE("a tied weight lives in one unit that both segments touch") {
  const UnitLayout layout = lay_out_units(tiny_graph({.tied = true}), tiny_job());
  CHECK(layout.units.size() == 3);
  CHECK(layout.units_of_segment[3] == std::vector<int>{0});
}

TEST_CASE("rows that do not divide by the ranks are padded, so every rank holds the same number") {
  Job job = tiny_job();
  job.mesh.shard = 4;
  const UnitLayout layout = lay_out_units(tiny_graph(), job);
  const UnitParameter& p = layout.units[0].parameters[0];
  CHECK(p.rows_per_rank == 3);  // ceil(10 / 4)
  CHECK(p.shard_elements == 12);
  CHECK(p.padded_elements == 48);
}

TEST_CASE("gradients are reduced largest first, equal ones in the order of the unit") {
  const Unit unit = lay_out_units(tiny_graph(), tiny_job()).units.at(1);
  REQUIRE(unit.reduce_order.size() == unit.parameters.size());
  const auto slot = [&](int parameter) {
    return std::ranges::find(unit.parameters, parameter, &UnitParameter::parameter) - unit.parameters.begin();
  };
  for (std::size_t i = 1; i < unit.reduce_order.size(); ++i) {
    const auto before = slot(unit.reduce_order[i - 1]), after = slot(unit.reduce_order[i]);
    const std::int64_t larger = unit.parameters[static_cast<std::size_t>(before)].padded_elements;
    const std::int64_t smaller = unit.parameters[static_cast<std::size_t>(after)].padded_elements;
    CHECK((larger > smaller || (larger == smaller && before < after)));
  }
}

TEST_CASE("parameters start at multiples of 512 bytes and do not overlap, whatever their shapes and ranks") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    Job job = tiny_job();
    job.mesh.shard = 1 + static_cast<std::int64_t>(random() % 9);
    job.precision = precision_named(seed % 2 == 0 ? "bf16-mixed" : "bf16-pure");
    job.wrap_embeddings = false;
    const Graph graph = tiny_graph({.vocab = 1 + static_cast<std::int64_t>(random() % 300),
                                    .hidden = 1 + static_cast<std::int64_t>(random() % 70)});
    const UnitLayout layout = lay_out_units(graph, job);
    for (const Unit& unit : layout.units) {
      std::int64_t gathered_end = 0;
      std::vector<std::int64_t> shard_ends(unit.storages.size());
      for (const UnitParameter& p : unit.parameters) {
        CHECK(p.gathered_offset * dtype_bytes(unit.compute).n % 512 == 0);
        CHECK(p.dtype == unit.storages.at(static_cast<std::size_t>(p.storage)).dtype);
        CHECK(p.shard_offset * dtype_bytes(p.dtype).n % 512 == 0);
        CHECK(p.gathered_offset >= gathered_end);
        std::int64_t& shard_end = shard_ends.at(static_cast<std::size_t>(p.storage));
        CHECK(p.shard_offset >= shard_end);
        CHECK(p.padded_elements >= element_count(graph.parameters[static_cast<std::size_t>(p.parameter)]));
        gathered_end = p.gathered_offset + p.padded_elements;
        shard_end = p.shard_offset + p.shard_elements;
      }
      CHECK(unit.gathered_elements >= gathered_end);
      for (std::size_t i = 0; i < shard_ends.size(); ++i) CHECK(unit.storages[i].elements >= shard_ends[i]);
    }
  }
}

TEST_CASE("frozen parameters come last, so gradients and states cover a prefix of the shard") {
  Job job = tiny_job();
  job.wrap_embeddings = false;
  job.freeze = {"embed.*"};
  const Unit unit = lay_out_units(tiny_graph(), job).units[0];
  CHECK_FALSE(unit.parameters[1].trainable);
  CHECK(unit.trainable_elements == unit.parameters[1].shard_offset);
}

TEST_CASE("frozen parameters of another dtype have a storage of their own, and gathered places as before") {
  Job job = tiny_job();
  job.wrap_embeddings = false;
  job.freeze = {"embed.*"};
  job.mesh.shard = 2;
  const Unit together = lay_out_units(tiny_graph(), job).units[0];
  job.frozen_dtype = Dtype::bf16;
  const UnitLayout layout = lay_out_units(tiny_graph(), job);
  const Unit& unit = layout.units[0];
  REQUIRE(unit.storages.size() == 2);
  CHECK(unit.storages[0].dtype == Dtype::f32);
  CHECK(unit.storages[0].elements == unit.trainable_elements);
  CHECK(unit.storages[1].dtype == Dtype::bf16);
  CHECK(unit.storages[1].elements == 256);  // 5 rows of 4 on each rank, rounded up to 512 bytes
  CHECK(shard_bytes(unit) == 4 * Bytes{unit.trainable_elements} + Bytes{512});
  CHECK(unit.parameters[1].shard_offset == 0);
  CHECK(unit.parameters[1].gathered_offset == together.parameters[1].gathered_offset);
  CHECK(unit.trainable_elements == together.trainable_elements);
  CHECK(layout.units[1].storages.size() == 1);
  job.frozen_dtype = Dtype::f32;
  CHECK(lay_out_units(tiny_graph(), job).units[0].storages.size() == 1);
}

TEST_CASE("a unit that is frozen in the compute dtype is its only shard's gathered storage") {
  Job job = tiny_job();
  job.precision = precision_named("bf16-mixed");
  job.freeze = {"embed.*"};
  CHECK_FALSE(lay_out_units(tiny_graph(), job).units[0].gathered_is_shard);
  job.frozen_dtype = Dtype::bf16;
  CHECK(lay_out_units(tiny_graph(), job).units[0].gathered_is_shard);
}

TEST_CASE("quantized matrices are codes and scales of a rank's rows, each on 512 bytes") {
  const Graph graph = build_graph(testing::llama_8b(), {});
  Job job = tiny_job();
  job.precision = precision_named("bf16-mixed");
  job.freeze = {"layers:0-31"};
  const auto quantized = [&](const char* format, std::int64_t shards) {
    job.quantization = format;
    job.mesh.shard = shards;
    std::int64_t bytes = 0;
    for (const Unit& unit : lay_out_units(graph, job).units) {
      for (const UnitStorage& storage : unit.storages) {
        if (storage.quantization == nullptr) continue;
        bytes += storage.elements * dtype_bytes(storage.dtype).n;
        CHECK(storage.quantization->name == format);
        CHECK(storage.whole_elements * shards == 218'103'808);  // the seven matrices of a layer
      }
    }
    return bytes;
  };
  // 6,979,321,856 elements: half a byte each, 4 bytes for each 64.
  CHECK(quantized("nf4", 1) == 3'489'660'928 + 436'207'616);
  // 224 matrices: a byte for each 64, 4 for each 16,384, an offset that takes 512 as all else is aligned.
  CHECK(quantized("nf4-double", 1) == 3'489'660'928 + 109'051'904 + 1'703'936 + 114'688);
  CHECK(quantized("nf4-double", 8) == 450'134'016);
  // A byte each and 4 for each of 43,008 rows of a layer.
  CHECK(quantized("int8", 1) == 6'979'321'856 + 32 * 4 * 43'008);
}

TEST_CASE("LibTorch's functions make codes whole in several passes over their scratch, a chunk at a time") {
  const Graph graph = build_graph(testing::llama_8b(), {});
  Job job = tiny_job();
  job.precision = precision_named("bf16-mixed");
  job.freeze = {"layers:0-31"};
  const auto of_layer = [&](const char* format) {
    job.quantization = format;
    return dequantize_traffic(lay_out_units(graph, job).units.at(1));
  };
  constexpr std::int64_t kElements = 218'103'808;  // in 104 chunks of 2^21
  // With half a byte that is read and 2 that are written, 22.5 bytes an element.
  CHECK(of_layer("nf4").bytes == Bytes{20 * kElements});
  CHECK(of_layer("nf4").launches == 7 + 4 * 104);
  CHECK(of_layer("nf4-double").bytes == Bytes{20 * kElements});
  CHECK(of_layer("nf4-double").launches == 7 + 8 * 104);
  CHECK(of_layer("int8").bytes == Bytes{24 * kElements});
  CHECK(of_layer("int8").launches == 4 * (2 * 8 + 2 * 2 + 2 * 28 + 29));
  CHECK(of_layer("none").launches == 0);
}

TEST_CASE("what isn't a frozen matrix of a layer keeps its dtype, and what a gather makes keeps its place") {
  Job job = tiny_job();
  job.freeze = {"layers:0"};
  const UnitLayout before = lay_out_units(tiny_graph(), job);
  job.quantization = "nf4";
  const UnitLayout layout = lay_out_units(tiny_graph(), job);
  int quantized = 0;
  for (std::size_t u = 0; u < layout.units.size(); ++u) {
    const Unit& unit = layout.units[u];
    CHECK(unit.gathered_elements == before.units[u].gathered_elements);
    CHECK(unit.gathered_is_shard == (unit.name != "layers.0"));
    for (const UnitParameter& p : unit.parameters) {
      const bool is_matrix = p.row_elements > 1;
      CHECK((p.quantization != nullptr) == (unit.name == "layers.0" && is_matrix));
      CHECK((p.dtype == Dtype::u8) == (p.quantization != nullptr));
      quantized += p.quantization != nullptr ? 1 : 0;
    }
  }
  CHECK(quantized > 0);
}

TEST_CASE("trained matrices are codes on the card, their shard and what is beside them in it are in host memory") {
  const Graph graph = build_graph(testing::llama_8b(), {});
  Job job = tiny_job();
  job.precision = precision_named("bf16-pure");
  job.quantization = "fp8";
  job.offload = {"optimizer"};
  job.freeze = {"layers:3", "*norm.weight"};
  for (const std::int64_t shards : {1, 8}) {
    CAPTURE(shards);
    job.mesh.shard = shards;
    for (const Unit& unit : lay_out_units(graph, job).units) {
      CAPTURE(unit.name);
      const bool is_frozen = unit.name == "layers.3";
      CHECK((unit.codes_bytes > 0) == (unit.name.starts_with("layers.") && !is_frozen));
      if (unit.codes_bytes == 0) continue;
      // A byte for each of 218,103,808 elements, and 4 for each of 43,008 rows.
      CHECK(unit.codes_bytes == (218'103'808 + 4 * 43'008) / shards);
      CHECK(unit.coded_elements * shards == 218'103'808);
      CHECK(unit.storages.front().elements == unit.trainable_elements);
      CHECK(plain_elements(unit) == 0);
      CHECK(unit.storages.size() == 2);  // norms, which are frozen, stay on the card
      CHECK(card_bytes(unit) == Bytes{unit.codes_bytes} + 2 * 4096 / shards * Bytes{2});
      CHECK_FALSE(unit.gathered_is_shard);
    }
  }
  job.freeze = {};
  const Unit layer = lay_out_units(graph, job).units[1];
  CHECK(layer.storages.size() == 1);
  CHECK(plain_elements(layer) == 2 * 4096 / 8);
  CHECK(layer.parameters.back().trained_as == nullptr);
  CHECK(layer.parameters.back().shard_offset >= layer.coded_elements);
}

TEST_CASE("parts of a quantized matrix fill its bytes, with numbers of 32 bits where they are aligned") {
  for (const Quantization& format : kQuantizations) {
    for (const auto& [rows, columns] : {std::pair{1024, 4096}, std::pair{7, 10}, std::pair{1, 1}, std::pair{130, 65}}) {
      CAPTURE(format.name);
      CAPTURE(rows);
      const QuantizedParts parts = quantized_parts(format, rows, columns);
      CHECK(parts.codes_begin + ceil_div(rows * columns * format.code, 8) == quantized_bytes(format, rows, columns).n);
      CHECK((format.scale == 8 || parts.scales_begin % 4 == 0));
      CHECK(parts.offset_begin % 4 == 0);
    }
  }
}

TEST_CASE("what a GPU makes codes whole in is bounded, but for a row") {
  const auto bytes = [](const char* format, std::int64_t rows, std::int64_t columns) {
    return 4 * DequantizeScratch(*quantization_named(format), rows, columns).end;
  };
  CHECK(bytes("nf4-double", 14336, 4096) == 12'717'056);
  CHECK(bytes("nf4-double", 4096, 28672) == 12'717'056);
  CHECK(bytes("int8", 14336, 4096) == 8'388'608);
  CHECK(bytes("int8", 3, 2'500'000) == 10'000'000);
}

TEST_CASE("a quantization of nothing is an error") {
  Job job = tiny_job();
  job.quantization = "nf4";
  for (const char* pattern : {"embeddings", "head"}) {
    job.freeze = {pattern};
    CHECK_THROWS_WITH_AS(
        lay_out_units(tiny_graph(), job),
        "--quantization nf4: no matrix of a layer is frozen; give --freeze or --method lora, or leave it "
        "out (trained ones: --quantization fp8 with --offload optimizer)",
        InputError);
  }
}

TEST_CASE("a dtype of frozen parameters where nothing is frozen is an error") {
  Job job = tiny_job();
  job.frozen_dtype = Dtype::bf16;
  CHECK_THROWS_WITH_AS(lay_out_units(tiny_graph(), job),
                       "--frozen-dtype bf16: nothing is frozen; give --freeze, or leave it out", InputError);
}

TEST_CASE("with one shard and one dtype the gathered unit is the shard") {
  CHECK(lay_out_units(tiny_graph(), tiny_job()).units[0].gathered_is_shard);
  Job mixed = tiny_job();
  mixed.precision = precision_named("bf16-mixed");
  CHECK_FALSE(lay_out_units(tiny_graph(), mixed).units[0].gathered_is_shard);
}

}  // namespace vramfit
