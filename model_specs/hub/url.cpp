#include "model_specs/hub/url.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"

namespace vramfit {
namespace {

constexpr std::size_t kLongestUrl = 8192;
constexpr int kLargestPort = 65535;

bool is_letter_or_digit(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 && (c & 0x80) == 0; }

int default_port(std::string_view scheme) { return scheme == "https" ? 443 : 80; }

[[noreturn]] void fail(std::string_view text, std::string_view why) {
  throw ModelError(fmt::format("address \"{}\": {}", printable(text), why));
}

int parse_port(std::string_view text, std::string_view digits) {
  int port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  const bool is_whole = error == std::errc{} && end == digits.data() + digits.size();
  if (!is_whole || port < 1 || port > kLargestPort) fail(text, "its port isn't a number from 1 to 65535");
  return port;
}

bool is_host(std::string_view host) {
  if (host.starts_with('[') && host.ends_with(']')) {
    return host.size() > 2 && std::all_of(host.begin() + 1, host.end() - 1, [](char c) {
             return c == ':' || c == '.' || std::isxdigit(static_cast<unsigned char>(c)) != 0;
           });
  }
  return !host.empty() && std::all_of(host.begin(), host.end(),
                                      [](char c) { return is_letter_or_digit(c) || c == '.' || c == '-' || c == '_'; });
}

}  // namespace

bool Url::is_loopback() const {
  const bool is_address = host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos;
  return is_address || host == "localhost" || host == "[::1]";
}

std::string Url::origin() const {
  if (port == default_port(scheme)) return fmt::format("{}://{}", scheme, host);
  return fmt::format("{}://{}:{}", scheme, host, port);
}

Url parse_url(std::string_view text) {
  const bool is_plain = std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7F; });
  if (!is_plain || text.size() > kLongestUrl) fail(text, "it is too long or holds characters that no address has");
  Url url;
  const std::size_t scheme_end = text.find("://");
  if (scheme_end != std::string_view::npos) url.scheme = text.substr(0, scheme_end);
  std::transform(url.scheme.begin(), url.scheme.end(), url.scheme.begin(), [](char c) { return std::tolower(c); });
  if (url.scheme != "https" && url.scheme != "http") fail(text, "expected https://");
  const std::string_view rest = text.substr(scheme_end + 3);
  const std::string_view authority = rest.substr(0, rest.find_first_of("/?#\\"));
  if (authority.find('@') != std::string_view::npos)
    fail(text.substr(0, scheme_end + 3), "names and passwords aren't taken");
  const std::size_t bracket = authority.find(']');
  const std::size_t colon = authority.find(':', bracket == std::string_view::npos ? 0 : bracket);
  url.host = authority.substr(0, colon);
  std::transform(url.host.begin(), url.host.end(), url.host.begin(), [](char c) { return std::tolower(c); });
  if (!is_host(url.host)) fail(text, "its host isn't a name or address");
  url.port = colon == std::string_view::npos ? default_port(url.scheme) : parse_port(text, authority.substr(colon + 1));
  const std::string_view path = rest.substr(authority.size());
  if (path.starts_with('\\')) fail(text, "a backslash after the host");
  url.path = std::string(path.starts_with('/') ? "" : "/").append(path.substr(0, path.find('#')));
  return url;
}

Url resolve_location(const Url& base, std::string_view location) {
  if (location.find("://") < location.find_first_of("/?#")) return parse_url(location);
  if (location.starts_with("//")) return parse_url(base.scheme + ":" + std::string(location));
  if (location.starts_with('/')) return parse_url(base.origin() + std::string(location));
  const std::string path = base.path.substr(0, base.path.find('?'));
  return parse_url(base.origin() + path.substr(0, path.rfind('/') + 1) + std::string(location));
}

std::string percent_encode(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool is_unreserved = is_letter_or_digit(c) || c == '-' || c == '.' || c == '_' || c == '~';
    out += is_unreserved ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

}  // namespace vramfit
