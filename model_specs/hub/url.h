// Web addresses, parsed strictly: anything that could be an attempt to mislead is refused.
#pragma once

#include <string>
#include <string_view>

namespace vramfit {

struct Url {
  std::string scheme;  // "https" or "http"
  std::string host;    // lower case; IPv6 in brackets
  int port = 0;        // given or the scheme's
  std::string path;    // with the query; starts with '/'

  bool same_origin(const Url& other) const {
    return scheme == other.scheme && host == other.host && port == other.port;
  }
  /// 127.0.0.0/8, ::1 or localhost.
  bool is_loopback() const;
  std::string origin() const;  // "https://host", with the port when it isn't the scheme's
  std::string text() const { return origin() + path; }
};

/// Throws ModelError for anything but http(s)://HOST[:PORT][/PATH]; names and passwords are refused.
Url parse_url(std::string_view text);

/// What a Location header means on a page at `base`.
Url resolve_location(const Url& base, std::string_view location);

/// Escapes everything that isn't unreserved (RFC 3986), '/' too.
std::string percent_encode(std::string_view text);

}  // namespace vramfit
