#include "model_specs/resolve.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/suggest.h"
#include "model_specs/config.h"
#include "model_specs/hub/cache.h"
#include "model_specs/hub/client.h"
#include "model_specs/hub/safetensors.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLongestConfig = std::int64_t{16} << 20;
constexpr std::chrono::hours kFresh{24};
const std::string kConfigName = "config.json";

/// How to list a model's tensors in case its family is unknown.
using ListTensors = std::function<std::vector<StoredTensor>()>;

// A description of which only the tensors are known.
ModelSpec tensors_only(const std::vector<StoredTensor>& tensors, const std::string& source) {
  ModelSpec spec;
  spec.source = source + " (headers only)";
  spec.model_type = "unknown";
  spec.tensors.reserve(tensors.size());
  for (const StoredTensor& tensor : tensors) spec.tensors.push_back(NamedShape{tensor.name, tensor.shape});
  if (tensors.empty()) throw ModelError(source + ": no tensors");
  element_count(tensors);
  return spec;
}

ModelSpec read_config(const std::string& json, const std::string& source, const ListTensors& list_tensors_of_it) {
  try {
    ModelSpec spec = parse_config(json, source);
    spec.source = source;
    return spec;
  } catch (const UnknownFamily& unknown) {
    try {
      ModelSpec spec = tensors_only(list_tensors_of_it(), source);
      spec.model_type = unknown.name;
      return spec;
    } catch (const ModelError& no_headers) {
      throw ModelError(fmt::format("{}; its tensors can't be read either: {}", unknown.what(), no_headers.what()));
    }
  }
}

ModelSpec read_local(const std::string& path) {
  std::error_code error;
  refuse_pickle(path);
  const fs::path given(path);
  if (fs::is_directory(given, error)) {
    const std::string config = (given / kConfigName).string();
    if (!fs::exists(config, error)) return tensors_only(list_tensors(path).tensors, path);
    return read_config(read_file(config, kModelFile, kLongestConfig), config,
                       [&] { return list_tensors(path).tensors; });
  }
  if (path.ends_with(".safetensors") || path.ends_with(".safetensors.index.json")) {
    // A config.json next to it says more than the headers do.
    const fs::path config = given.parent_path() / kConfigName;
    const auto list = [&] { return list_tensors(path).tensors; };
    if (!fs::exists(config, error)) return tensors_only(list(), path);
    return read_config(read_file(config.string(), kModelFile, kLongestConfig), config.string(), list);
  }
  const fs::path folder = given.has_parent_path() ? given.parent_path() : fs::path(".");
  return read_config(read_file(path, kModelFile, kLongestConfig), path, [&] { return list_tensors(folder).tensors; });
}

// Text that can't be a model id is meant as a path, even if no such file exists.
bool looks_like_path(const std::string& text) {
  const auto starts = [&](std::string_view with) { return text.starts_with(with); };
  const auto ends = [&](std::string_view with) { return text.ends_with(with); };
  return starts("/") || starts("./") || starts("../") || starts("~") || text == "." || text == ".." || ends("/") ||
         ends(".json") || ends(".safetensors") || is_pickle_name(text) || ends(".gguf");
}

std::string source_text(const ModelId& id, const HubOptions& hub, const std::string& commit) {
  return fmt::format("{}/{} @ {}", hub.endpoint.text(), id.repo, commit.empty() ? id.revision : commit.substr(0, 12));
}

ModelSpec read_cached(const CachedFile& cached, const std::string& what) {
  const std::string source = fmt::format("{}: {}", what, cached.path.string());
  return read_config(read_file(cached.path.string(), kModelFile, kLongestConfig), source,
                     [&] { return list_tensors(cached.path.parent_path().string()).tensors; });
}

ModelSpec download(const ModelId& id, const HubOptions& hub, const ResolveOptions& options) {
  const HubClient client(hub);
  const auto file = client.file(id, kConfigName, kLongestConfig);
  ModelId pinned = id;
  if (file && !file->commit.empty()) pinned.revision = file->commit;
  const std::string source = source_text(id, hub, file ? file->commit : "");
  const auto list = [&] { return remote_tensors(client, pinned); };
  if (!file) return tensors_only(list(), source);
  ModelSpec spec = read_config(file->text, source, list);
  const std::string why_not = keep_in_cache(hub.own_cache, id, file->commit, kConfigName, file->text);
  if (!why_not.empty() && options.notes != nullptr) options.notes->push_back(why_not);
  return spec;
}

// The copy kept by an earlier download; of no use if its family has become unknown, because it has no tensors.
std::optional<ModelSpec> read_kept(const std::optional<CachedFile>& kept, const ModelId& id, const HubOptions& hub) {
  if (!kept) return std::nullopt;
  const std::string json = read_file(kept->path.string(), kModelFile, kLongestConfig);
  try {
    ModelSpec spec = parse_config(json, source_text(id, hub, kept->commit));
    spec.source = source_text(id, hub, kept->commit);
    return spec;
  } catch (const UnknownFamily&) {
    return std::nullopt;
  }
}

ModelSpec read_hub(const ModelId& id, HubOptions hub, const ResolveOptions& options) {
  if (const auto cached = find_cached(hub.hf_cache, id, kConfigName)) return read_cached(*cached, "cache");
  std::string why_not;
  const auto kept = find_kept(hub.own_cache, id, kConfigName, why_not);
  if (!why_not.empty()) {
    hub.own_cache.clear();
    if (options.notes != nullptr) options.notes->push_back(why_not);
  }
  if (kept && (kept->age < kFresh || hub.offline)) {
    if (auto spec = read_kept(kept, id, hub)) return *spec;
  }
  if (hub.offline) {
    throw ModelError(
        fmt::format("model \"{}\": not in the catalog or a cache, and HF_HUB_OFFLINE forbids to ask the hub; "
                    "use a local path, or unset it",
                    id.text()));
  }
  try {
    return download(id, hub, options);
  } catch (const Unreachable& unreachable) {
    auto spec = read_kept(kept, id, hub);
    if (!spec) throw;
    const std::string note = fmt::format("{}; used the copy of {} h ago", unreachable.what(), kept->age.count() / 3600);
    if (options.notes != nullptr) options.notes->push_back(note);
    return *spec;
  }
}

ModelSpec resolve_id(const std::string& text, const ResolveOptions& options) {
  const std::string suggestion = options.catalog.suggest ? options.catalog.suggest(text) : "";
  try {
    HubOptions hub = hub_options(options.environment);
    if (options.adjust_hub) options.adjust_hub(hub);
    return read_hub(parse_model_id(text), hub, options);
  } catch (const ModelError& error) {
    throw ModelError(error.what() + suggestion);
  }
}

}  // namespace

ModelSpec resolve_model(const std::string& text, const ResolveOptions& options) {
  std::error_code error;
  ModelSpec spec;
  if (looks_like_path(text) || fs::exists(text, error)) {
    spec = read_local(text);
  } else if (auto known = options.catalog.find ? options.catalog.find(text) : std::nullopt) {
    spec = std::move(*known);
  } else {
    spec = resolve_id(text, options);
  }
  spec.name = text;
  return spec;
}

}  // namespace vramfit
