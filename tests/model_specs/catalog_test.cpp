#include "model_specs/catalog.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <set>
#include <string>

#include "base/files/file.h"
#include "model_specs/config.h"
#include "model_specs/parameters.h"
#include "tests/support/paths.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;

// A published size: "70B" is exact to ten billions, "8.03B" to ten millions, 8030261248 to the parameter. Publishers
// both round and cut off at the last digit that they give.
struct Published {
  std::int64_t value = 0, last_digit = 1;
};

Published read_published(const JsonValue& number) {
  if (number.kind == JsonValue::Kind::integer) return {number.integer, 1};
  const std::string& text = number.text;
  const std::int64_t unit = text.back() == 'B' ? 1'000'000'000 : 1'000'000;
  REQUIRE((text.back() == 'B' || text.back() == 'M'));
  const std::string digits = text.substr(0, text.size() - 1);
  const std::size_t point = digits.find('.');
  std::int64_t last = unit;
  if (point != std::string::npos) {
    for (std::size_t i = point + 1; i < digits.size(); ++i) last /= 10;
  } else {
    for (std::size_t i = digits.size(); i > 1 && digits[i - 1] == '0'; --i) last *= 10;
  }
  return {std::llround(std::stod(digits) * static_cast<double>(unit)), last};
}

bool agrees(std::int64_t count, const Published& published) {
  const std::int64_t cut = count / published.last_digit * published.last_digit;
  const std::int64_t rounded = (count + published.last_digit / 2) / published.last_digit * published.last_digit;
  return published.value == cut || published.value == rounded;
}

}  // namespace

TEST_CASE("every entry names its source and has the number of parameters that was published") {
  for (const CatalogEntry& entry : catalog()) {
    CAPTURE(entry.id);
    const JsonValue document = parse_json(entry.json, std::string(entry.id));
    JsonObject json(document, std::string(entry.id));
    CHECK(json.text("source").find("https://") != std::string::npos);
    JsonObject published = json.object("published");
    CHECK(published.text("source").find("https://") != std::string::npos);
    const ModelSpec spec = catalog_spec(entry);
    CHECK(spec.name == entry.id);
    // Some publish the size of the class without a head.
    const bool headless = published.has("of");
    const ModelSpec counted = headless ? without_head(spec) : spec;
    if (headless) CHECK(published.text("of") == counted.architecture);
    const auto at = std::find(document.keys.begin(), document.keys.end(), "published") - document.keys.begin();
    const JsonValue& row = document.items[static_cast<std::size_t>(at)];
    REQUIRE(row.keys.front() == "parameters");
    CAPTURE(parameter_count(counted));
    CHECK(agrees(parameter_count(counted), read_published(row.items.front())));
  }
}

TEST_CASE("the catalog holds every file of its folder, and at least 110 models") {
  std::size_t files = 0;
  for (const fs::directory_entry& file :
       fs::directory_iterator(fs::path(testing::source_dir()) / "model_specs/catalog")) {
    CAPTURE(file.path().string());
    CHECK(file.path().extension() == ".json");
    const std::string path = file.path().string();
    const JsonValue document = parse_json(read_file(path, kModelFile, 1 << 20), path);
    CHECK(find_in_catalog(JsonObject(document, "entry").text("id")) != nullptr);
    ++files;
  }
  CHECK(catalog().size() == files);
  CHECK(catalog().size() >= 110);
}

TEST_CASE("an id or alias finds one entry whatever its case, and no name is used twice") {
  std::set<std::string> names;
  for (const CatalogEntry& entry : catalog()) {
    std::string all = std::string(entry.id) + "\n" + std::string(entry.aliases);
    while (!all.empty()) {
      std::string name = all.substr(0, all.find('\n'));
      all.erase(0, std::min(all.size(), name.size() + 1));
      CAPTURE(name);
      CHECK(find_in_catalog(name) == &entry);
      std::transform(name.begin(), name.end(), name.begin(),
                     [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
      CHECK(find_in_catalog(name) == &entry);
      CHECK(names.insert(name).second);
    }
  }
  CHECK(find_in_catalog("HuggingFaceTB/SmolLM2-135M") != nullptr);
  CHECK(find_in_catalog("llama-3.1-8b") == find_in_catalog("meta-llama/Llama-3.1-8B"));
  CHECK(find_in_catalog("") == nullptr);
}

TEST_CASE("names that people fine-tune are known, re-uploads and distillates under their own hub ids") {
  for (const char* const name :
       {"phi-4", "gemma-3-4b", "google/gemma-3-12b-it", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
        "deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "mistralai/Mistral-Nemo-Instruct-2407",
        "Qwen/Qwen2.5-Coder-7B-Instruct", "unsloth/Llama-3.2-1B-Instruct", "NousResearch/Llama-2-7b-hf",
        "HuggingFaceH4/zephyr-7b-beta", "Qwen/Qwen3-4B-Instruct-2507", "tiiuae/Falcon3-7B-Instruct"}) {
    CAPTURE(name);
    CHECK(find_in_catalog(name) != nullptr);
  }
  CHECK(catalog_spec(*find_in_catalog("gemma-3-4b")).note.starts_with("text model only"));
  CHECK(catalog_spec(*find_in_catalog("gemma-3-1b")).note.empty());
}

TEST_CASE("a misspelt name is answered with the nearest known one") {
  CHECK(find_in_catalog("lama-3.1-8b") == nullptr);
  CHECK(catalog_suggestion("lama-3.1-8b") == "; did you mean \"llama-3.1-8b\"?");
  CHECK(catalog_suggestion("a name that nothing here comes close to, however one reads it").empty());
}

TEST_CASE("a figure agrees when it was rounded or cut at its last digit, and not beyond") {
  CHECK(agrees(14'770'033'664, {14'700'000'000, 100'000'000}));
  CHECK(agrees(1'235'814'400, {1'240'000'000, 10'000'000}));
  CHECK_FALSE(agrees(14'800'000'000, {14'700'000'000, 100'000'000}));
  CHECK_FALSE(agrees(8'030'261'248, {8'030'261'249, 1}));
  CHECK(agrees(68'976'648'192, {70'000'000'000, 10'000'000'000}));
}

}  // namespace vramfit
