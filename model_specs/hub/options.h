// Environment variables for the hub, with the names and precedence of huggingface_hub.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "model_specs/hub/http.h"

namespace vramfit {

struct HubOptions {
  Url endpoint;                     // HF_ENDPOINT, https://huggingface.co unless given
  std::string token;                // HF_TOKEN, else the file HF_TOKEN_PATH or $HF_HOME/token; never printed
  bool offline = false;             // HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE
  std::filesystem::path hf_cache;   // HF_HUB_CACHE, else $HF_HOME/hub; read only
  std::filesystem::path own_cache;  // $VRAMFIT_CACHE/hub; empty: none
  HttpLimits limits;                // of one request
  std::int64_t total_seconds = 60;  // VRAMFIT_HUB_TIMEOUT: for all requests of a model together, waits included
  int retries = 3;
  int backoff_milliseconds = 500;  // before the first retry; doubles
  int longest_wait_seconds = 10;   // of what a Retry-After header may ask for
};

using Environment = std::function<std::string(const char* name)>;

/// A variable of this process's environment; "" if it isn't set.
std::string process_environment(const char* name);

/// $VRAMFIT_CACHE, else vramfit in $XDG_CACHE_HOME or ~/.cache: where what commands keep has folders. Empty: nowhere.
std::filesystem::path own_cache(const Environment& variable);

/// Throws ModelError for an HF_ENDPOINT that isn't https (http is allowed for loopback only), for a token with
/// characters that tokens don't contain, and for a VRAMFIT_HUB_TIMEOUT that isn't a whole number of seconds from 1 to
/// 86,400.
HubOptions hub_options(const Environment& variable);

}  // namespace vramfit
