#include "model_specs/hub/http.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <memory>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "model_specs/hub/curl_library.h"

namespace vramfit {
namespace {

constexpr std::size_t kMostHeaderBytes = std::size_t{256} << 10U;

struct Receiver {
  HttpReply reply;
  std::int64_t most_body = 0;
  std::size_t header_bytes = 0;
  bool too_large = false;
};

std::string trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1));
}

std::size_t take_header(const char* data, std::size_t size, std::size_t count, void* user) {
  auto& receiver = *static_cast<Receiver*>(user);
  const std::string_view line(data, size * count);
  receiver.header_bytes += line.size();
  if (receiver.header_bytes > kMostHeaderBytes) return 0;
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return line.size();
  std::string name(line.substr(0, colon));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  receiver.reply.headers[name] = trimmed(line.substr(colon + 1));
  return line.size();
}

std::size_t take_body(const char* data, std::size_t size, std::size_t count, void* user) {
  auto& receiver = *static_cast<Receiver*>(user);
  const std::size_t bytes = size * count;
  receiver.too_large = static_cast<std::int64_t>(bytes) > receiver.most_body - std::ssize(receiver.reply.body);
  if (receiver.too_large) return 0;
  receiver.reply.body.append(data, bytes);
  return bytes;
}

// An easy handle, freed when the request ends.
class Handle {
 public:
  Handle() : curl_(curl_library()), handle_(curl_.easy_init()) {
    if (handle_ == nullptr) throw ModelError("libcurl can't be initialized");
  }
  ~Handle() {
    curl_.slist_free_all(headers_);
    curl_.easy_cleanup(handle_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  Handle(Handle&&) = delete;
  Handle& operator=(Handle&&) = delete;

  template <typename Value>
  void set(CURLoption option, Value value) {
    check(option, curl_.easy_setopt(handle_, option, value));
  }
  void allow_protocols(bool with_http) {
    check(CURLOPT_PROTOCOLS_STR, vramfit::allow_protocols(curl_, handle_, with_http));
  }
  void add_header(const std::string& line) { headers_ = curl_.slist_append(headers_, line.c_str()); }
  CURLcode perform() {
    set(CURLOPT_HTTPHEADER, headers_);
    return curl_.easy_perform(handle_);
  }
  int status() const {
    long status = 0;  // NOLINT(google-runtime-int): libcurl's own type
    curl_.easy_getinfo(handle_, CURLINFO_RESPONSE_CODE, &status);
    return static_cast<int>(status);
  }
  std::string reason(CURLcode code) const { return curl_.easy_strerror(code); }

 private:
  void check(CURLoption option, CURLcode code) const {
    if (code == CURLE_OK) return;
    throw ModelError(fmt::format("libcurl: option {}: {}", int(option), curl_.easy_strerror(code)));
  }

  const CurlLibrary& curl_;
  CURL* handle_;
  curl_slist* headers_ = nullptr;
};

// The variables by which other programs are told about a company's own certificates.
void set_certificates(Handle& handle) {
  for (const char* name : {"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"}) {
    const char* path = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
    if (path == nullptr || *path == '\0') continue;
    handle.set(CURLOPT_CAINFO, path);
    return;
  }
}

void set_options(Handle& handle, const HttpRequest& request) {
  const bool is_loopback = request.url.is_loopback();
  handle.set(CURLOPT_URL, request.url.text().c_str());
  handle.allow_protocols(is_loopback);
  handle.set(CURLOPT_FOLLOWLOCATION, 0L);
  handle.set(CURLOPT_NOSIGNAL, 1L);
  handle.set(CURLOPT_SSL_VERIFYPEER, 1L);
  handle.set(CURLOPT_SSL_VERIFYHOST, 2L);
  handle.set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(request.limits.connect_milliseconds));
  handle.set(CURLOPT_TIMEOUT_MS, static_cast<long>(request.limits.total_milliseconds));
  handle.set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  handle.set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(request.limits.stall_seconds));
  handle.set(CURLOPT_USERAGENT, "vramfit");
  if (is_loopback) handle.set(CURLOPT_NOPROXY, "*");
  if (!request.range.empty()) handle.set(CURLOPT_RANGE, request.range.c_str());
  set_certificates(handle);
  handle.add_header("Accept: */*");
  if (!request.token.empty()) handle.add_header("Authorization: Bearer " + request.token);
}

HttpReply::Outcome outcome_of(CURLcode code) {
  if (code == CURLE_OPERATION_TIMEDOUT) return HttpReply::Outcome::timed_out;
  const std::array cut_short{CURLE_PARTIAL_FILE, CURLE_RECV_ERROR,   CURLE_GOT_NOTHING,
                             CURLE_SEND_ERROR,   CURLE_HTTP2_STREAM, CURLE_HTTP2};
  const bool is_cut = std::find(cut_short.begin(), cut_short.end(), code) != cut_short.end();
  return is_cut ? HttpReply::Outcome::cut_short : HttpReply::Outcome::unreachable;
}

}  // namespace

HttpReply http_get(const HttpRequest& request) {
  if (request.url.scheme != "https" && !request.url.is_loopback()) {
    throw ModelError(fmt::format("{}: expected https://; http is for loopback only", printable(request.url.origin())));
  }
  Handle handle;
  Receiver receiver;
  receiver.most_body = request.limits.body_bytes;
  set_options(handle, request);
  handle.set(CURLOPT_HEADERFUNCTION, &take_header);
  handle.set(CURLOPT_HEADERDATA, static_cast<void*>(&receiver));
  handle.set(CURLOPT_WRITEFUNCTION, &take_body);
  handle.set(CURLOPT_WRITEDATA, static_cast<void*>(&receiver));
  const CURLcode code = handle.perform();
  receiver.reply.status = handle.status();
  receiver.reply.outcome = code == CURLE_OK ? HttpReply::Outcome::answered : outcome_of(code);
  if (receiver.too_large) receiver.reply.outcome = HttpReply::Outcome::too_large;
  if (code != CURLE_OK) receiver.reply.reason = handle.reason(code);
  return std::move(receiver.reply);
}

}  // namespace vramfit
