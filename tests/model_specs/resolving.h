// A home folder, an environment and a patient hub client, for tests that resolve models.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "model_specs/resolve.h"
#include "tests/support/http_server.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/temporary_directory.h"

namespace vramfit::testing {

inline const std::string kToken = "hf_secretsecretsecret";
inline const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";
inline const std::string kConfig =
    R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":64,"hidden_size":16,)"
    R"("intermediate_size":32,"num_hidden_layers":1,"num_attention_heads":2,"max_position_embeddings":32})";
inline const std::string kUnknown = R"({"model_type":"novel","architectures":["NovelForCausalLM"]})";
inline const std::string kTensors =
    safetensors_bytes(R"({"a":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]}})", "data");

inline bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Seconds that no answer on loopback takes, however busy the machine: what is tested is never a race with the clock.
inline constexpr int kPatience = 1000;

/// An environment of a test's own, short waits between requests, and patience with each of them.
struct World {
  TemporaryDirectory home;
  std::map<std::string, std::string> variables{{"HOME", home.path().string()}};
  std::vector<std::string> notes;

  ResolveOptions options() {
    ResolveOptions made;
    made.environment = [this](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? std::string() : found->second;
    };
    made.notes = &notes;
    made.adjust_hub = [](HubOptions& hub) {
      hub.backoff_milliseconds = 1;
      hub.longest_wait_seconds = 1;
      hub.limits.connect_milliseconds = 1000 * kPatience;
      hub.limits.total_milliseconds = 1000 * kPatience;
      hub.limits.stall_seconds = kPatience;
      hub.total_seconds = kPatience;
    };
    return made;
  }
  ModelSpec resolve(const std::string& text) { return resolve_model(text, options()); }

  std::string error(const std::string& text) {
    try {
      resolve(text);
    } catch (const ModelError& failure) {
      CHECK_FALSE(mentions(failure.what(), kToken));
      return failure.what();
    }
    return "";
  }
};

inline WebReply config_reply() { return {200, {"X-Repo-Commit: " + kCommit}, kConfig}; }

inline const WebReply kNoEntry{404, {"X-Error-Code: EntryNotFound"}, ""};

}  // namespace vramfit::testing
