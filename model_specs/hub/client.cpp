#include "model_specs/hub/client.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <thread>

#include <fmt/format.h>

#include "base/text/suggest.h"

namespace vramfit {
namespace {

using Outcome = HttpReply::Outcome;

constexpr int kMostRedirects = 5;
constexpr std::array kRedirects{301, 302, 303, 307, 308};

bool is_redirect(const HttpReply& reply) {
  const bool is_one = std::find(kRedirects.begin(), kRedirects.end(), reply.status) != kRedirects.end();
  return reply.outcome == Outcome::answered && is_one;
}

// Whether a retry may help. A server that doesn't exist is not waited for.
bool is_passing(const HttpReply& reply) {
  if (reply.outcome == Outcome::timed_out || reply.outcome == Outcome::cut_short) return true;
  return reply.outcome == Outcome::answered && (reply.status == 429 || (reply.status >= 500 && reply.status != 501));
}

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

[[noreturn]] void fail(const ModelId& id, const std::string& why) {
  throw ModelError(fmt::format("model \"{}\": {}", id.text(), why));
}

// What the hub's reply means and what to do about it. Without a token, Hugging Face replies 401 for a model that
// doesn't exist; X-Error-Code tells the cases apart.
[[noreturn]] void fail_status(const ModelId& id, const HttpReply& reply, const HubOptions& options) {
  const std::string code = reply.header("x-error-code"), host = options.endpoint.host;
  const std::string page = fmt::format("{}/{}", options.endpoint.text(), id.repo);
  const std::string token = options.token.empty() ? "set HF_TOKEN" : "check that HF_TOKEN may read it";
  if (code == "RevisionNotFound") fail(id, fmt::format("{} has no revision \"{}\"", page, id.revision));
  if (code == "GatedRepo") {
    fail(id, fmt::format("gated (HTTP {}): accept its license at {} and {}, or use a catalog name or a local copy",
                         reply.status, page, token));
  }
  if (reply.status == 401 || code == "RepoNotFound" || reply.status == 404) {
    fail(id, fmt::format("not found on {} (HTTP {}): check the name; if it is private, {}", host, reply.status, token));
  }
  if (reply.status == 403) fail(id, fmt::format("{} denies access (HTTP 403): see {} and {}", host, page, token));
  if (reply.status == 429) {
    fail(id, fmt::format("{} answers that there are too many requests (HTTP 429): try again later{}", host,
                         options.token.empty() ? ", or set HF_TOKEN, which raises the limit" : ""));
  }
  fail(id, fmt::format("{} answers HTTP {}{}", host, reply.status,
                       reply.status >= 500 ? ": try again later, or use a catalog name" : ""));
}

void check_reply(const ModelId& id, const HttpReply& reply, const HubOptions& options, std::int64_t most) {
  const std::string host = options.endpoint.host;
  switch (reply.outcome) {
    case Outcome::answered:
      if (reply.status != 200 && reply.status != 206) fail_status(id, reply, options);
      return;
    case Outcome::too_large:
      fail(id, fmt::format("{} sends more than the {} bytes expected", host, most));
    case Outcome::timed_out:
    case Outcome::cut_short:
    case Outcome::unreachable:
      throw Unreachable(
          fmt::format("model \"{}\": can't be read from {} ({}): check the network, HF_ENDPOINT and "
                      "HTTPS_PROXY, or use a catalog name or a local path",
                      id.text(), host, printable(reply.reason)));
  }
}

bool is_missing_file(const HttpReply& reply) {
  return reply.outcome == Outcome::answered && reply.status == 404 && reply.header("x-error-code") == "EntryNotFound";
}

HubFile make_file(HttpReply reply) {
  const std::string commit = reply.header("x-repo-commit");
  HubFile file{std::move(reply.body), is_commit(commit) ? commit : "", 0};
  file.file_bytes = std::ssize(file.text);
  return file;
}

}  // namespace

Url HubClient::address(const ModelId& id, const std::string& name) const {
  Url url = options_.endpoint;
  url.path += fmt::format("/{}/resolve/{}/{}", id.repo, percent_encode(id.revision), percent_encode(name));
  return url;
}

std::chrono::milliseconds HubClient::left() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now());
}

HttpReply HubClient::get(HttpRequest request) const {
  const std::int64_t milliseconds = std::min<std::int64_t>(request.limits.total_milliseconds, left().count());
  HttpReply reply;
  if (milliseconds > 0) {
    request.limits.total_milliseconds = static_cast<int>(milliseconds);
    reply = http_get(request);
    if (reply.outcome != Outcome::timed_out || left().count() > 0) return reply;
  }
  reply.outcome = Outcome::timed_out;
  reply.reason = fmt::format("not done after {} s, which VRAMFIT_HUB_TIMEOUT can change", options_.total_seconds);
  return reply;
}

// The token is sent only to the endpoint: once a redirect leads elsewhere, it is dropped for all further requests.
HttpReply HubClient::follow(HttpRequest request) const {
  HttpReply reply = get(request);
  std::string commit = reply.header("x-repo-commit");
  for (int hops = 0; is_redirect(reply) && !reply.header("location").empty(); ++hops) {
    if (hops == kMostRedirects) throw ModelError(request.url.origin() + ": redirects more than 5 times");
    const Url next = resolve_location(request.url, reply.header("location"));
    if (next.scheme != "https" && !(next.is_loopback() && options_.endpoint.is_loopback())) {
      throw ModelError(fmt::format("{}: redirects to {}: expected https://", request.url.origin(), next.origin()));
    }
    if (!next.same_origin(options_.endpoint)) request.token.clear();
    request.url = next;
    reply = get(request);
    if (commit.empty()) commit = reply.header("x-repo-commit");
  }
  // The file itself may be on another server, which knows nothing of revisions.
  if (!commit.empty()) reply.headers["x-repo-commit"] = commit;
  return reply;
}

HttpReply HubClient::ask(const HttpRequest& request) const {
  HttpReply reply = follow(request);
  int wait_milliseconds = options_.backoff_milliseconds;
  for (int retry = 0; retry < options_.retries && is_passing(reply); ++retry) {
    std::int64_t wait = wait_milliseconds;
    if (const auto asked = whole_number(reply.header("retry-after"))) {
      if (*asked > options_.longest_wait_seconds) break;
      wait = std::max(wait, *asked * 1000);
    }
    if (std::chrono::milliseconds(wait) >= left()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(wait));
    wait_milliseconds *= 2;
    reply = follow(request);
  }
  return reply;
}

std::optional<HubFile> HubClient::file(const ModelId& id, const std::string& name, std::int64_t most) const {
  HttpRequest request{address(id, name), options_.token, "", options_.limits};
  request.limits.body_bytes = most;
  HttpReply reply = ask(request);
  if (is_missing_file(reply)) return std::nullopt;
  check_reply(id, reply, options_, most);
  if (reply.status != 200)
    fail(id, fmt::format("{} answers HTTP {} to a plain request", options_.endpoint.host, reply.status));
  return make_file(std::move(reply));
}

std::optional<HubFile> HubClient::range(const ModelId& id, const std::string& name, std::int64_t first,
                                        std::int64_t last) const {
  HttpRequest request{address(id, name), options_.token, fmt::format("{}-{}", first, last), options_.limits};
  request.limits.body_bytes = last - first + 1;
  HttpReply reply = ask(request);
  if (is_missing_file(reply)) return std::nullopt;
  check_reply(id, reply, options_, request.limits.body_bytes);
  const std::string range = reply.header("content-range");  // "bytes 0-99999/4976698672"
  const int status = reply.status;
  HubFile file = make_file(std::move(reply));
  if (status == 200) {  // a whole file that is no longer than the range asked for
    if (first != 0) fail(id, fmt::format("{} ignores the range asked for", options_.endpoint.host));
    return file;
  }
  const auto total = whole_number(std::string_view(range).substr(std::min(range.rfind('/') + 1, range.size())));
  const bool agrees = total && range.starts_with(fmt::format("bytes {}-", first)) &&
                      first + std::ssize(file.text) == std::min(last + 1, *total);
  if (!agrees) fail(id, fmt::format("{} answers with another range than the one asked for", options_.endpoint.host));
  file.file_bytes = *total;
  return file;
}

}  // namespace vramfit
