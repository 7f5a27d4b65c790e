#include "program/files/peft_folder.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "base/error.h"
#include "tests/support/mutate.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

constexpr const char* kConfig =
    R"({"peft_type": "LORA", "r": 2, "lora_alpha": 6, "lora_dropout": 0.1, "target_modules": ["q_proj", "nowhere"]})";

struct Folder {
  testing::TemporaryDirectory directory;
  std::string path() const { return directory.path().string(); }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(directory.path() / name, std::ios::binary) << bytes;
  }
};

testing::TensorToStore tensor(const std::string& name, int rows, int columns) {
  return {.name = name,
          .dtype = "F32",
          .shape = fmt::format("[{}, {}]", rows, columns),
          .data = std::string(static_cast<std::size_t>(4 * rows * columns), '\0')};
}

const std::string kQ = "base_model.model.model.layers.0.self_attn.q_proj";

std::vector<testing::TensorToStore> pair(const std::string& module, int rank = 2) {
  return {tensor(module + ".lora_A.weight", rank, 8), tensor(module + ".lora_B.weight", 6, rank)};
}

std::string error_of(const Folder& folder) {
  try {
    read_peft_folder(folder.path());
  } catch (const Error& error) {
    CHECK((error.code == ExitCode::usage || error.code == ExitCode::model));
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return error.what();
  }
  return "";
}

std::string error_of(const std::vector<testing::TensorToStore>& tensors) {
  const Folder folder;
  folder.write("adapter_config.json", kConfig);
  folder.write("adapter_model.safetensors", testing::safetensors_bytes(tensors));
  return error_of(folder);
}

bool says(const std::string& error, const std::string& part) {
  CAPTURE(error);
  CAPTURE(part);
  return error.find(part) != std::string::npos;
}

PeftFolder example(const Folder& folder) {
  folder.write("adapter_config.json", kConfig);
  folder.write("adapter_model.safetensors", testing::safetensors_bytes(pair(kQ)));
  return read_peft_folder(folder.path());
}

TEST_CASE("a folder fills in what isn't set of a job, and nothing else") {
  const Folder place;
  const PeftFolder folder = example(place);
  Job job;
  std::vector<std::string> fixed{"micro_batch", "lora_dropout"};
  take_adapters(folder, job, fixed);
  CHECK(job.method == Method::lora);
  CHECK(job.lora.rank == 2);
  CHECK(job.lora.alpha == 6);
  CHECK(job.lora.dropout == 0);  // was set
  CHECK(job.lora.targets == std::vector<std::string>{"q_proj"});
  CHECK(fixed == std::vector<std::string>{"micro_batch", "lora_dropout", "method", "lora_rank", "lora_alpha", "rslora",
                                          "dora", "lora_targets"});
}

TEST_CASE("what was set and contradicts the folder is refused by name") {
  const Folder place;
  const PeftFolder folder = example(place);
  const auto error_with = [&](const char* field, void (*set)(Job&)) {
    Job job;
    job.method = Method::lora;
    set(job);
    std::vector<std::string> fixed{"method", field};
    try {
      take_adapters(folder, job, fixed);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(says(error_with("lora_rank", [](Job& job) { job.lora.rank = 8; }), "--lora-rank 8: the adapters in"));
  CHECK(says(error_with("lora_alpha", [](Job& job) { job.lora.alpha = 7; }), "--lora-alpha 7: the adapters in"));
  CHECK(says(error_with("dora", [](Job& job) { job.lora.has_magnitudes = true; }), "--dora on: the adapters in"));
  CHECK(says(error_with("rslora", [](Job& job) { job.lora.rank_stabilized = true; }), "use_rslora off"));
  CHECK(says(error_with("method", [](Job& job) { job.method = Method::full; }), "--method full"));
  CHECK(error_with("method", [](Job& job) { job.method = Method::qlora; }).empty());
}

TEST_CASE("weights are pairs of matrices of the configuration's rank") {
  CHECK(error_of(pair(kQ)).empty());
  CHECK(says(error_of(pair(kQ, 3)), "has rank 3, and adapter_config.json says 2"));
  CHECK(says(error_of({pair(kQ)[0]}), "there is no lora_B"));
  CHECK(says(error_of({pair(kQ)[1]}), "there is no lora_A"));
  CHECK(says(error_of(pair("model.q_proj")), "only base_model.model.MODULE"));
  CHECK(says(error_of({tensor("base_model.model.q.lora_magnitude_vector", 1, 6)}), "only base_model.model.MODULE"));
  CHECK(says(error_of({tensor("base_model.model.e.lora_embedding_A", 2, 6)}), "adapters of embeddings"));
  CHECK(says(error_of({tensor("base_model.model.lm_head.weight", 2, 6)}), "lm_head.weight"));
  CHECK(says(error_of({{.name = kQ + ".lora_A.weight", .dtype = "F32", .shape = "[2]", .data = std::string(8, '\0')}}),
             "has 1 dimensions"));
  CHECK(says(error_of(std::vector<testing::TensorToStore>{}), "no adapters"));
}

TEST_CASE("magnitudes are there where the configuration says use_dora, one for each output, and nowhere else") {
  const auto error_with = [](bool use_dora, int magnitudes) {
    const Folder folder;
    folder.write("adapter_config.json",
                 fmt::format(R"({{"peft_type": "LORA", "r": 2, "lora_alpha": 6, "use_dora": {}}})", use_dora));
    std::vector<testing::TensorToStore> tensors = pair(kQ);
    if (magnitudes > 0) {
      tensors.push_back({.name = kQ + ".lora_magnitude_vector",
                         .dtype = "F32",
                         .shape = fmt::format("[{}]", magnitudes),
                         .data = std::string(static_cast<std::size_t>(4 * magnitudes), '\0')});
    }
    folder.write("adapter_model.safetensors", testing::safetensors_bytes(tensors));
    return error_of(folder);
  };
  CHECK(error_with(true, 6).empty());
  CHECK(error_with(false, 0).empty());
  CHECK(says(error_with(true, 0), "no .lora_magnitude_vector for it"));
  CHECK(says(error_with(false, 6), "doesn't say use_dora"));
  CHECK(says(error_with(true, 5), "is 5 long, and its adapter has 6 outputs"));
}

TEST_CASE("what lacks a file, or has a pickle in its place, is refused and not unpickled") {
  const Folder empty;
  CHECK(says(error_of(empty), "adapter_config.json"));
  const Folder pickled;
  pickled.write("adapter_config.json", kConfig);
  CHECK(says(error_of(pickled), "adapter_model.safetensors"));
  pickled.write("adapter_model.bin", "\x80\x02");
  CHECK(says(error_of(pickled), "never unpickled"));
}

TEST_CASE("mutated weights are read or refused with one line") {
  std::mt19937_64 random(5);
  const std::string bytes = testing::safetensors_bytes(pair(kQ));
  const Folder folder;
  folder.write("adapter_config.json", kConfig);
  int refused = 0;
  for (int i = 0; i < 1000; ++i) {
    folder.write("adapter_model.safetensors", testing::mutate(bytes, random));
    refused += error_of(folder).empty() ? 0 : 1;
  }
  CHECK(refused > 100);
}

}  // namespace
}  // namespace vramfit
