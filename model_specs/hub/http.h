// One HTTP request. The caller handles redirects and retries and interprets the reply.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "model_specs/hub/url.h"

namespace vramfit {

struct HttpLimits {
  std::int64_t body_bytes = std::int64_t{16} << 20;
  int connect_milliseconds = 10'000;
  int total_milliseconds = 60'000;
  int stall_seconds = 15;  // without a byte
};

struct HttpRequest {
  Url url;
  std::string token;  // sent as a bearer token; "" for none
  std::string range;  // "0-99999"; "" for the whole
  HttpLimits limits;
};

struct HttpReply {
  enum class Outcome { answered, timed_out, cut_short, too_large, unreachable };
  Outcome outcome = Outcome::unreachable;
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  std::string reason;  // why there is no answer

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

/// Certificates are verified, nothing is unpacked, no redirect is followed, and https is the only scheme except on
/// loopback, where no proxy is used. Throws ModelError for another scheme and when libcurl is missing.
HttpReply http_get(const HttpRequest& request);

}  // namespace vramfit
