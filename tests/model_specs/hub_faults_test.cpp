#include <doctest/doctest.h>

#include "model_specs/graph.h"
#include "model_specs/parameters.h"
#include "tests/model_specs/resolving.h"

namespace vramfit {
namespace {

using testing::config_reply;
using testing::HttpServer;
using testing::kCommit;
using testing::kNoEntry;
using testing::kPatience;
using testing::kTensors;
using testing::kToken;
using testing::kUnknown;
using testing::mentions;
using testing::WebReply;
using testing::WebRequest;
using testing::World;

TEST_CASE("redirects in a circle, to files, or to plain http elsewhere are refused") {
  World world;
  world.variables["HF_TOKEN"] = kToken;
  std::string location;
  const HttpServer server([&](const WebRequest&) { return WebReply{302, {"Location: " + location}, ""}; });
  world.variables["HF_ENDPOINT"] = server.address();
  location = "/again";
  CHECK(mentions(world.error("org/a"), "more than 5 times"));
  CHECK(server.requests().size() == 6);
  for (const char* to :
       {"file:///etc/passwd", "http://example.com/x", "ftp://127.0.0.1/x", "http://user:pw@127.0.0.1/x",
        "http://127.0.0.1.example.com/x", "http://127.0.0.1\\@example.com/", "gopher://x"}) {
    CAPTURE(to);
    location = to;
    const std::size_t before = server.requests().size();
    CHECK_FALSE(world.error("org/a").empty());
    CHECK(server.requests().size() == before + 1);
  }
}

TEST_CASE("the hub's refusals say what to do") {
  World world;
  WebReply reply;
  const HttpServer server([&](const WebRequest&) { return reply; });
  world.variables["HF_ENDPOINT"] = server.address();
  struct Case {
    int status;
    std::string code, expected;
  };
  for (const Case& c :
       {Case{401, "GatedRepo", "accept its license at " + server.address() + "/org/name and set HF_TOKEN"},
        Case{403, "GatedRepo", "gated (HTTP 403)"}, Case{401, "RepoNotFound", "check the name"},
        Case{401, "", "set HF_TOKEN"}, Case{403, "", "denies access"},
        Case{404, "RepoNotFound", "not found on 127.0.0.1"}, Case{404, "RevisionNotFound", "has no revision \"main\""},
        Case{418, "", "answers HTTP 418"}}) {
    CAPTURE(c.status);
    CAPTURE(c.code);
    reply = {c.status, c.code.empty() ? std::vector<std::string>{} : std::vector{"X-Error-Code: " + c.code}, "x"};
    CHECK(mentions(world.error("org/name"), c.expected));
  }
  world.variables["HF_TOKEN"] = kToken;
  reply = {403, {"X-Error-Code: GatedRepo"}, ""};
  CHECK(mentions(world.error("org/name"), "check that HF_TOKEN may read it"));
}

TEST_CASE("passing failures are asked again at most three times, and no longer than a server may ask for") {
  World world;
  std::vector<WebReply> replies;
  std::size_t asked = 0;
  const HttpServer server([&](const WebRequest&) { return replies[std::min(asked++, replies.size() - 1)]; });
  world.variables["HF_ENDPOINT"] = server.address();
  WebReply cut = config_reply();
  cut.missing_bytes = 10;
  replies = {{503, {}, ""}, cut, {429, {"Retry-After: 0"}, ""}, config_reply()};
  CHECK(world.resolve("org/a").model_type == "llama");
  CHECK(asked == 4);
  asked = 0;
  replies = {{429, {"Retry-After: 86400"}, ""}};
  CHECK(mentions(world.error("org/b"), "too many requests"));
  CHECK(asked == 1);
  asked = 0;
  replies = {{500, {}, ""}};
  CHECK(mentions(world.error("org/c"), "HTTP 500: try again later"));
  CHECK(asked == 4);
  asked = 0;
  replies = {cut};
  CHECK(mentions(world.error("org/d"), "can't be read from"));
  CHECK(asked == 4);
}

TEST_CASE("a server that falls silent is left when either limit of time is reached") {
  World world;
  WebReply silent = config_reply();
  silent.stall = true;  // until the client hangs up: without limits this case would run into ctest's
  const HttpServer server([&](const WebRequest&) { return silent; });
  world.variables["HF_ENDPOINT"] = server.address();
  ResolveOptions options = world.options();
  HttpLimits limits;
  options.adjust_hub = [&](HubOptions& hub) {
    hub.retries = 0;
    hub.limits = limits;
  };
  limits = {.connect_milliseconds = 1000 * kPatience, .total_milliseconds = 200, .stall_seconds = kPatience};
  CHECK_THROWS_WITH_AS(resolve_model("org/a", options), doctest::Contains("(Timeout was reached)"), ModelError);
  limits.total_milliseconds = 1000 * kPatience;
  limits.stall_seconds = 1;
  CHECK_THROWS_WITH_AS(resolve_model("org/a", options), doctest::Contains("(Timeout was reached)"), ModelError);
}

TEST_CASE("a slow server is left when the time for all requests together is over, however patient each of them is") {
  World world;
  WebReply silent = config_reply();
  silent.stall = true;
  const HttpServer server([&](const WebRequest&) { return silent; });
  world.variables["HF_ENDPOINT"] = server.address();
  world.variables["VRAMFIT_HUB_TIMEOUT"] = "1";
  ResolveOptions options = world.options();
  options.adjust_hub = [](HubOptions& hub) { hub.retries = 1000; };
  CHECK_THROWS_WITH_AS(resolve_model("org/a", options),
                       doctest::Contains("not done after 1 s, which VRAMFIT_HUB_TIMEOUT can change"), ModelError);
  CHECK(server.requests().size() == 1);
  for (const char* wrong : {"0", "-1", "1.5", "x", "99999999999999999999"}) {
    world.variables["VRAMFIT_HUB_TIMEOUT"] = wrong;
    CHECK(mentions(world.error("org/a"), "VRAMFIT_HUB_TIMEOUT"));
  }
}

TEST_CASE("a server that says too much, or what was not asked for, is not believed") {
  World world;
  WebReply reply{200, {}, std::string((16 << 20) + 1, ' ')};
  const HttpServer server([&](const WebRequest&) { return reply; });
  world.variables["HF_ENDPOINT"] = server.address();
  CHECK(mentions(world.error("org/a"), "more than the 16777216 bytes"));
  // Never asked for, never unpacked: a compressed body is no JSON, however large it would become.
  reply = {
      200, {"Content-Encoding: gzip"}, std::string("\x1f\x8b\x08\x00\x00\x00\x00\x00", 8) + std::string(1000, 'x')};
  CHECK_FALSE(world.error("org/b").empty());
}

TEST_CASE("a server that lies about ranges, or has nothing to read, is found out") {
  World world;
  WebReply weights = kNoEntry;
  const HttpServer server([&](const WebRequest& request) {
    if (mentions(request.path, "/config.json")) return WebReply{200, {"X-Repo-Commit: " + kCommit}, kUnknown};
    return mentions(request.path, "/model.safetensors") && !mentions(request.path, "index") ? weights : kNoEntry;
  });
  world.variables["HF_ENDPOINT"] = server.address();
  CHECK(mentions(world.error("org/novel"), "no safetensors files"));
  weights = {206, {"Content-Range: bytes 5-9/100"}, "xxxxx"};
  CHECK(mentions(world.error("org/novel"), "another range"));
  weights = {206, {}, "xxxxx"};
  CHECK(mentions(world.error("org/novel"), "another range"));
  weights = {200, {}, kTensors};  // ranges aren't known there, but the file is short
  CHECK(parameter_count(world.resolve("org/novel")) == 4);
  weights = {200, {}, kTensors + std::string(200'000, 'x')};
  CHECK(mentions(world.error("org/novel"), "more than the 100000 bytes"));
}

}  // namespace
}  // namespace vramfit
