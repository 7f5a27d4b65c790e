#include <algorithm>

#include <fmt/format.h>

#include "base/text/suggest.h"
#include "model_specs/hub/client.h"

namespace vramfit {
namespace {

// Most headers are shorter, so one request is enough.
constexpr std::int64_t kFirstBytes = 100'000;
constexpr std::size_t kMostRemoteShards = 1000;

HubFile required(std::optional<HubFile> file, const ModelId& id, const std::string& name) {
  if (!file) throw ModelError(fmt::format("model \"{}\": the hub has no {}", id.text(), printable(name)));
  return std::move(*file);
}

std::vector<StoredTensor> remote_header(const HubClient& client, const ModelId& id, const std::string& name,
                                        const HubFile& start) {
  const std::string where = fmt::format("{}/{}", id.repo, name);
  const std::int64_t length = header_length(start.text, start.file_bytes, where);
  const std::int64_t data_start = kLengthBytes + length;
  std::string header = start.text.substr(kLengthBytes);
  if (std::ssize(start.text) < data_start) {
    header += required(client.range(id, name, std::ssize(start.text), data_start - 1), id, name).text;
  }
  header.resize(static_cast<std::size_t>(length));
  return parse_header(header, start.file_bytes, where);
}

}  // namespace

std::vector<StoredTensor> remote_tensors(const HubClient& client, const ModelId& id) {
  const std::string single = "model.safetensors", index_name = "model.safetensors.index.json";
  if (const auto start = client.range(id, single, 0, kFirstBytes - 1)) return remote_header(client, id, single, *start);
  const auto text = client.file(id, index_name, kLongestIndex);
  if (!text) {
    throw ModelError(
        fmt::format("model \"{}\": no safetensors files, from whose headers its size could be read; other "
                    "formats are never unpickled: convert to safetensors",
                    id.text()));
  }
  const ShardIndex index = parse_shard_index(text->text, fmt::format("{}/{}", id.repo, index_name));
  if (index.shards.size() > kMostRemoteShards) {
    throw ModelError(fmt::format("model \"{}\": more than {} shards", id.text(), kMostRemoteShards));
  }
  std::vector<std::vector<StoredTensor>> shards;
  for (const std::string& name : index.shards) {
    const HubFile start = required(client.range(id, name, 0, kFirstBytes - 1), id, name);
    shards.push_back(remote_header(client, id, name, start));
  }
  return pick_indexed(index, std::move(shards), id.text());
}

}  // namespace vramfit
