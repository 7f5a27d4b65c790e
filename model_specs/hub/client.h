// The Hugging Face hub: files of models, with redirects, retries and errors that say what to do.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "model_specs/hub/model_id.h"
#include "model_specs/hub/options.h"
#include "model_specs/hub/safetensors.h"

namespace vramfit {

/// The hub could not be reached at all (as opposed to an error reply): an older copy may do.
struct Unreachable : ModelError {
  using ModelError::ModelError;
};

struct HubFile {
  std::string text;
  std::string commit;           // what the revision is at the moment; "" if the server doesn't say
  std::int64_t file_bytes = 0;  // of the whole file, also when a range was asked for
};

class HubClient {
 public:
  /// The time that its requests have together, options.total_seconds, begins now.
  explicit HubClient(HubOptions options)
      : options_(std::move(options)), deadline_(Clock::now() + std::chrono::seconds(options_.total_seconds)) {}

  /// A whole file of at most `most` bytes; nothing if the model has no such file. Throws ModelError for an error reply,
  /// Unreachable if there is no reply.
  std::optional<HubFile> file(const ModelId& id, const std::string& name, std::int64_t most) const;

  /// Bytes first .. last of a file, or fewer when it ends before.
  std::optional<HubFile> range(const ModelId& id, const std::string& name, std::int64_t first, std::int64_t last) const;

  const HubOptions& options() const { return options_; }

 private:
  using Clock = std::chrono::steady_clock;

  std::chrono::milliseconds left() const;
  HttpReply get(HttpRequest request) const;
  HttpReply follow(HttpRequest request) const;
  HttpReply ask(const HttpRequest& request) const;
  Url address(const ModelId& id, const std::string& name) const;

  HubOptions options_;
  Clock::time_point deadline_;
};

/// All tensors of a model on the hub, from the headers of its safetensors files. Throws ModelError when it has none.
std::vector<StoredTensor> remote_tensors(const HubClient& client, const ModelId& id);

}  // namespace vramfit
