#include "model_specs/hub/safetensors.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/file.h"
#include "base/json/json_value.h"
#include "base/text/suggest.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kExtension = ".safetensors";
constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::size_t kMostShards = 10'000;
constexpr std::array<std::string_view, 8> kPickles{".bin", ".pt",     ".pth", ".ckpt",
                                                   ".pkl", ".pickle", ".pt2", ".distcp"};

[[noreturn]] void fail(const std::string& where, const std::string& why) {
  throw ModelError(fmt::format("{}: {}", printable(where), why));
}

bool is_shard_name(std::string_view name) {
  constexpr std::size_t kLongestName = 255;
  const bool is_plain = name.find_first_of(std::string_view("/\\:\0", 4)) == std::string_view::npos;
  return is_plain && name.size() <= kLongestName && !name.starts_with('.') && name.ends_with(kExtension);
}

// The directory that links in `directory` may lead to: itself, or in a Hugging Face cache, whose snapshots link to
// blobs, the folder of the model.
fs::path links_root(const fs::path& directory) {
  const fs::path real = fs::canonical(directory);
  return real.parent_path().filename() == "snapshots" ? real.parent_path().parent_path() : real;
}

std::string path_beneath(const fs::path& directory, const std::string& name) {
  std::error_code error;
  const fs::path real = fs::canonical(directory / name, error);
  if (error) fail((directory / name).string(), error.message());
  const fs::path inside = real.lexically_relative(links_root(directory));
  if (inside.empty() || *inside.begin() == "..")
    fail((directory / name).string(), "a link that leads out of its folder");
  return real.string();
}

std::vector<StoredTensor> header_of(const std::string& path) { return read_header(File(path, kWeightsFile)); }

Checkpoint list_indexed(const fs::path& index_path) {
  const std::string where = index_path.string();
  const ShardIndex index = parse_shard_index(read_file(where, kWeightsFile, kLongestIndex), where);
  const fs::path directory = index_path.has_parent_path() ? index_path.parent_path() : fs::path(".");
  Checkpoint checkpoint;
  std::vector<std::vector<StoredTensor>> shards;
  for (const std::string& shard : index.shards) {
    checkpoint.files.push_back(path_beneath(directory, shard));
    shards.push_back(header_of(checkpoint.files.back()));
  }
  checkpoint.tensors = pick_indexed(index, std::move(shards), where);
  return checkpoint;
}

Checkpoint list_single(const std::string& path) { return Checkpoint{{path}, header_of(path)}; }

Checkpoint list_directory(const fs::path& directory) {
  std::error_code error;
  if (fs::exists(directory / kIndexName, error)) {
    path_beneath(directory, std::string(kIndexName));
    return list_indexed(directory / kIndexName);
  }
  if (fs::exists(directory / kSingleName, error)) return list_single(path_beneath(directory, std::string(kSingleName)));
  std::vector<std::string> found;
  std::string pickle;
  constexpr int kMostEntries = 100'000;
  int entries = 0;
  fs::directory_iterator entry(directory, error);
  for (; !error && entry != fs::directory_iterator() && entries < kMostEntries; entry.increment(error), ++entries) {
    const std::string name = entry->path().filename().string();
    if (is_shard_name(name)) found.push_back(name);
    if (is_pickle_name(name)) pickle = name;
  }
  if (error) fail(directory.string(), error.message());
  if (found.size() == 1) return list_single(path_beneath(directory, found.front()));
  if (!found.empty()) {
    fail(directory.string(),
         fmt::format("{} .safetensors files and no {}; name one of them", found.size(), kIndexName));
  }
  if (!pickle.empty()) refuse_pickle((directory / pickle).string());
  fail(directory.string(), "holds no .safetensors file");
}

}  // namespace

bool is_pickle_name(std::string_view name) {
  return std::any_of(kPickles.begin(), kPickles.end(), [&](std::string_view end) { return name.ends_with(end); });
}

void refuse_pickle(const std::string& path) {
  if (!is_pickle_name(path)) return;
  fail(path, "a PyTorch pickle, which can run code when loaded: never unpickled; convert to safetensors");
}

Checkpoint list_tensors(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return list_directory(path);
  refuse_pickle(path);
  if (path.ends_with(kExtension)) return list_single(path);
  if (path.ends_with(".json")) return list_indexed(path);
  fail(path, "expected a .safetensors file, a model.safetensors.index.json, or a directory that holds one");
}

std::vector<StoredTensor> read_header(const File& file) {
  std::string start(static_cast<std::size_t>(std::min(file.bytes(), kLengthBytes)), '\0');
  file.read(0, start);
  std::string header(static_cast<std::size_t>(header_length(start, file.bytes(), file.path())), '\0');
  file.read(kLengthBytes, header);
  return parse_header(header, file.bytes(), file.path());
}

ShardIndex parse_shard_index(std::string_view json, const std::string& where) {
  try {
    const JsonValue document = parse_json(json, where, JsonLimits{static_cast<std::size_t>(kLongestIndex), 16});
    const auto key = std::find(document.keys.begin(), document.keys.end(), "weight_map");
    if (key == document.keys.end()) fail(where, "no \"weight_map\"");
    const JsonValue& map = document.items[static_cast<std::size_t>(key - document.keys.begin())];
    if (map.kind != JsonValue::Kind::object || map.keys.empty())
      fail(where, "\"weight_map\" isn't an object with entries");
    ShardIndex index;
    for (const JsonValue& file : map.items) {
      if (file.kind != JsonValue::Kind::text || !is_shard_name(file.text)) {
        fail(where,
             fmt::format("weight_map: \"{}\" isn't the plain name of a .safetensors file", printable(file.text, 80)));
      }
      // Neighbours in the map mostly share a shard.
      if (index.shards.empty() || index.shards.back() != file.text) index.shards.push_back(file.text);
    }
    std::sort(index.shards.begin(), index.shards.end());
    index.shards.erase(std::unique(index.shards.begin(), index.shards.end()), index.shards.end());
    if (index.shards.size() > kMostShards) fail(where, fmt::format("more than {} shards", kMostShards));
    for (std::size_t i = 0; i < map.keys.size(); ++i) {
      const auto shard = std::lower_bound(index.shards.begin(), index.shards.end(), map.items[i].text);
      index.entries.push_back({map.keys[i], static_cast<int>(shard - index.shards.begin())});
    }
    std::sort(index.entries.begin(), index.entries.end(),
              [](const ShardIndex::Entry& a, const ShardIndex::Entry& b) { return a.tensor < b.tensor; });
    return index;
  } catch (const InputError& error) {
    throw ModelError(error.what());
  }
}

std::vector<StoredTensor> pick_indexed(const ShardIndex& index, std::vector<std::vector<StoredTensor>> shards,
                                       const std::string& where) {
  std::vector<bool> found(index.entries.size());
  std::vector<StoredTensor> picked;
  for (std::size_t shard = 0; shard < shards.size(); ++shard) {
    for (StoredTensor& tensor : shards[shard]) {
      const auto entry =
          std::lower_bound(index.entries.begin(), index.entries.end(), tensor.name,
                           [](const ShardIndex::Entry& e, const std::string& name) { return e.tensor < name; });
      const bool is_here =
          entry != index.entries.end() && entry->tensor == tensor.name && entry->shard == static_cast<int>(shard);
      if (!is_here) continue;
      found[static_cast<std::size_t>(entry - index.entries.begin())] = true;
      tensor.file = static_cast<int>(shard);
      picked.push_back(std::move(tensor));
    }
  }
  const auto missing = std::find(found.begin(), found.end(), false);
  if (missing != found.end()) {
    const ShardIndex::Entry& entry = index.entries[static_cast<std::size_t>(missing - found.begin())];
    fail(where, fmt::format("tensor \"{}\" isn't in {}", printable(entry.tensor, 80),
                            printable(index.shards[static_cast<std::size_t>(entry.shard)], 80)));
  }
  return picked;
}

std::int64_t element_count(std::span<const StoredTensor> tensors) {
  std::int64_t total = 0;
  for (const StoredTensor& tensor : tensors) {
    std::int64_t elements = 1;
    for (const std::int64_t dim : tensor.shape) elements = checked_mul(elements, dim);
    total = checked_add(total, elements);
  }
  return total;
}

}  // namespace vramfit
