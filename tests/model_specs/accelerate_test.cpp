#include "model_specs/accelerate.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "model_specs/catalog.h"
#include "model_specs/config.h"
#include "model_specs/graph.h"

namespace vramfit {
namespace {

ModelSpec model(const char* name) {
  const CatalogEntry* entry = find_in_catalog(name);
  REQUIRE(entry != nullptr);
  return catalog_spec(*entry);
}

}  // namespace

TEST_CASE("bert-base-cased has the figures that accelerate's Space shows") {
  const auto rows = accelerate_training_rows(accelerate_sizes(model("bert-base-cased")));
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].model == "413.18 MB");
  CHECK(rows[0].gradients == "413.18 MB");
  CHECK(rows[0].backward == "826.36 MB");
  CHECK(rows[0].step == "1.61 GB");
  CHECK(rows[1].dtype == "float16");
  CHECK(rows[1].model == "413.18 MB");
  CHECK(rows[1].gradients == "619.77 MB");
  CHECK(rows[1].backward == "826.36 MB");
  CHECK(rows[1].step == "826.36 MB");
}

TEST_CASE("Llama-3-8B is 27.96 GB in fp32: without its head, with its rotary frequencies") {
  const AccelerateSizes sizes = accelerate_sizes(model("meta-llama/Meta-Llama-3-8B"));
  CHECK(sizes.total == Bytes{30019699200});
  const auto rows = accelerate_memory_rows(sizes);
  REQUIRE(rows.size() == 4);
  CHECK(rows[0].total_size == "27.96 GB");
  CHECK(rows[1].total_size == "13.98 GB");
  CHECK(rows[0].training == "111.83 GB");
  CHECK(rows[1].training == "55.92 GB");
  CHECK(rows[2].training == "N/A");
  // The mask buffer that older transformers registered, 8192 x 8192 of 4 bytes, makes the older figure.
  CHECK(accelerate_bytes(static_cast<double>(sizes.total.n) + 8192.0 * 8192 * 4) == "28.21 GB");
}

TEST_CASE(
    "the largest layer is a block where blocks are larger than the embedding, and bert's embeddings count whole") {
  // 12 h^2 + 13 h in fp32, against a vocabulary of 50304 rows of 128.
  CHECK(accelerate_sizes(model("pythia-14m")).largest_layer == Bytes{25755648});
  CHECK(accelerate_sizes(model("llama-2-7b")).largest_layer == Bytes{809533440});
  CHECK(accelerate_sizes(model("bert-base-cased")).largest_layer == Bytes{90669056});
  CHECK(accelerate_sizes(model("t5-3b")).largest_layer == Bytes{268451840});
}

TEST_CASE("sizes are written like Python writes a rounded float") {
  CHECK(accelerate_bytes(512) == "512 bytes");
  CHECK(accelerate_bytes(1024) == "1.0 KB");
  CHECK(accelerate_bytes(1536) == "1.5 KB");
  CHECK(accelerate_bytes(1024.0 * 1024 * 1.125) == "1.12 MB");
  CHECK(accelerate_bytes(1024.0 * 1024 * 1024 * 27.958) == "27.96 GB");
  CHECK(accelerate_bytes(1.0e15) == "909.49 TB");
  CHECK(accelerate_bytes(1.0e18) == "888.18 PB");
}

TEST_CASE("the drawn tables have rows of one width") {
  const std::string text = accelerate_text(model("smollm2-135m"), "HuggingFaceTB/SmolLM2-135M");
  CHECK(text.find("Memory Usage for loading `HuggingFaceTB/SmolLM2-135M`") != std::string::npos);
  CHECK(text.find("513.13 MB") != std::string::npos);
  const auto width = [](std::string_view line) {
    std::size_t characters = 0;
    for (const char c : line) characters += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
    return characters;
  };
  std::size_t expected = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (line.rfind("┌", 0) == 0) expected = width(line);
    CHECK(width(line) == expected);
    begin = end + 1;
  }
}

TEST_CASE("a model that is counted only has no graph, and says whose") {
  const ModelSpec spec = parse_config(R"({"model_type": "qwen2_moe"})", "config.json");
  CHECK_THROWS_AS(build_graph(spec, {}), NotModelled);
  CHECK_THROWS_WITH(build_graph(spec, {}), "not modelled: models of model_type qwen2_moe");
}

}  // namespace vramfit
