#include "model_specs/resolve.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "model_specs/graph.h"
#include "model_specs/parameters.h"
#include "tests/model_specs/resolving.h"

namespace vramfit {
namespace {

using testing::any_holds;
using testing::config_reply;
using testing::HttpServer;
using testing::kCommit;
using testing::kConfig;
using testing::kNoEntry;
using testing::kTensors;
using testing::kToken;
using testing::kUnknown;
using testing::mentions;
using testing::ranged;
using testing::safetensors_bytes;
using testing::TemporaryDirectory;
using testing::WebReply;
using testing::WebRequest;
using testing::World;

namespace fs = std::filesystem;

TEST_CASE("a path is read before anything else is asked") {
  World world;
  const TemporaryDirectory models;
  const std::string config = models.write("llama/config.json", kConfig);
  CHECK(world.resolve(config).model_type == "llama");
  const ModelSpec spec = world.resolve((models.path() / "llama").string());
  CHECK(spec.name == (models.path() / "llama").string());
  CHECK(spec.source == config);
  CHECK(mentions(world.error("./missing"), "No such file"));
  CHECK(mentions(world.error("missing/config.json"), "No such file"));
  CHECK(mentions(world.error("some/pytorch_model.bin"), "never unpickled"));
  models.write("deep/config.json", std::string(17 << 20, ' '));
  CHECK(mentions(world.error((models.path() / "deep").string()), "expected at most"));
}

TEST_CASE("a family that is unknown is described by the headers of its safetensors files") {
  World world;
  const TemporaryDirectory models;
  models.write("novel/config.json", kUnknown);
  const std::string folder = (models.path() / "novel").string();
  CHECK(mentions(world.error(folder), "novel"));
  CHECK(mentions(world.error(folder), "holds no .safetensors file"));
  const std::string weights = models.write("novel/model.safetensors", kTensors);
  for (const std::string& text : {folder, weights, folder + "/config.json"}) {
    CAPTURE(text);
    const ModelSpec spec = world.resolve(text);
    CHECK(parameter_count(spec) == 4);
    CHECK(parameters(spec).at(0).shape == std::vector<std::int64_t>{2, 2});
    CHECK(spec.model_type == "novel");
    CHECK_THROWS_WITH_AS(build_graph(spec, {}), "not modelled: models of model_type novel", NotModelled);
  }
}

TEST_CASE("the catalog comes before caches and hub, and its suggestion ends a message") {
  World world;
  world.variables["HF_HUB_OFFLINE"] = "1";
  ResolveOptions options = world.options();
  options.catalog.find = [](const std::string& name) {
    ModelSpec spec;
    spec.source = "catalog";
    return name == "org/known" ? std::optional(spec) : std::nullopt;
  };
  options.catalog.suggest = [](const std::string&) { return std::string("; did you mean \"org/known\"?"); };
  CHECK(resolve_model("org/known", options).source == "catalog");
  CHECK_THROWS_WITH_AS(resolve_model("org/knwon", options), doctest::Contains("did you mean \"org/known\"?"),
                       ModelError);
}

TEST_CASE("text that is neither path nor model id is refused before any request") {
  World world;
  const HttpServer server([](const WebRequest&) { return config_reply(); });
  world.variables["HF_ENDPOINT"] = server.address();
  for (const std::string& text :
       {std::string("../x"), std::string("a/b/c"), std::string("-opt"), std::string("https://evil/x"),
        std::string("a b"), std::string("a/..b"), std::string("a/b@"), std::string("a/b@../c"), std::string("a/b@x@y"),
        std::string("a\nb"), std::string("a/\x1b[31m"), std::string(10'000, 'a'),
        std::string("a/") + std::string(97, 'b'), std::string("a--b/c"), std::string("hf://"), std::string("a/b?x=1"),
        std::string("a%2Fb")}) {
    const std::string message = world.error(text);
    CAPTURE(message);
    CHECK_FALSE(message.empty());
    CHECK(message.find_first_of("\n\x1b") == std::string::npos);
    CHECK(message.size() < 600);
  }
  CHECK(server.requests().empty());
}

TEST_CASE("a model of huggingface_hub's cache is read without a request") {
  World world;
  world.variables["HF_ENDPOINT"] = "http://127.0.0.1:1";
  const std::string folder = ".cache/huggingface/hub/models--org--name/";
  world.home.write(folder + "refs/main", kCommit);
  world.home.write(folder + "blobs/x", kConfig);
  const fs::path snapshot = world.home.path() / folder / "snapshots" / kCommit;
  fs::create_directories(snapshot);
  fs::create_symlink("../../blobs/x", snapshot / "config.json");
  CHECK(mentions(world.resolve("org/name").source, "cache: "));
  CHECK(world.resolve("hf://org/name@" + kCommit).model_type == "llama");
  world.variables["HF_HUB_OFFLINE"] = "1";
  CHECK(world.resolve("org/name").model_type == "llama");
  CHECK(mentions(world.error("org/name@other"), "HF_HUB_OFFLINE"));
  world.variables["HF_HUB_CACHE"] = "/nonexistent";
  CHECK(mentions(world.error("org/name"), "HF_HUB_OFFLINE"));
}

TEST_CASE("a download sends the token, and is kept for a day and for when the hub can't be reached") {
  World world;
  world.home.write(".cache/huggingface/token", kToken + "\n");
  {
    const HttpServer server([](const WebRequest&) { return config_reply(); });
    world.variables["HF_ENDPOINT"] = server.address() + "/";
    const ModelSpec spec = world.resolve("org/name");
    CHECK(spec.source == server.address() + "/org/name @ 0123456789ab");
    CHECK(world.resolve("org/name").model_type == "llama");
    CHECK(world.resolve("org/name@" + kCommit).model_type == "llama");
    REQUIRE(server.requests().size() == 1);
    CHECK(server.requests()[0].path == "/org/name/resolve/main/config.json");
    CHECK(any_holds(server.requests(), "Authorization: Bearer " + kToken));
    CHECK_FALSE(any_holds(server.requests(), "Accept-Encoding"));
  }
  const fs::path own = world.home.path() / ".cache/vramfit/hub";
  CHECK((fs::status(own).permissions() & fs::perms::all) == fs::perms::owner_all);
  const fs::path ref = own / "models--org--name/refs/main";
  fs::last_write_time(ref, fs::file_time_type::clock::now() - std::chrono::hours(30));
  CHECK(world.resolve("org/name").model_type == "llama");
  REQUIRE(world.notes.size() == 1);
  CHECK(mentions(world.notes[0], "used the copy of 30 h ago"));
  CHECK(mentions(world.error("org/other"), "check the network"));
  for (const auto& file : fs::recursive_directory_iterator(own)) {
    CHECK_FALSE(mentions(file.path().string(), ".json."));  // nothing is left of what was written aside
  }
}

TEST_CASE("a revision is asked for as one part of the path") {
  World world;
  const HttpServer server([](const WebRequest&) { return config_reply(); });
  world.variables["HF_ENDPOINT"] = server.address();
  world.resolve("org/name@refs/pr/1");
  CHECK(server.requests().at(0).path == "/org/name/resolve/refs%2Fpr%2F1/config.json");
}

TEST_CASE("a redirect on the same server keeps the token, one to another server loses it for good") {
  World world;
  world.variables["HF_TOKEN"] = kToken;
  std::string back;
  const HttpServer other([&](const WebRequest& request) {
    return request.path == "/return" ? WebReply{302, {"Location: " + back}, ""} : WebReply{200, {}, kConfig};
  });
  const HttpServer hub([&](const WebRequest& request) {
    if (mentions(request.path, "/old/")) return WebReply{307, {"Location: /org/new/resolve/main/config.json"}, ""};
    if (mentions(request.path, "/gone/")) return WebReply{302, {"Location: " + other.address() + "/return"}, ""};
    if (mentions(request.path, "/new/")) {
      return WebReply{302, {"X-Repo-Commit: " + kCommit, "Location: " + other.address() + "/blob"}, ""};
    }
    return WebReply{200, {}, kConfig};
  });
  back = hub.address() + "/final";
  world.variables["HF_ENDPOINT"] = hub.address();
  CHECK(mentions(world.resolve("org/old").source, "0123456789ab"));
  REQUIRE(hub.requests().size() == 2);
  CHECK(mentions(hub.requests()[0].text, kToken));
  CHECK(mentions(hub.requests()[1].text, kToken));
  world.resolve("org/gone");
  REQUIRE(hub.requests().size() == 4);
  CHECK(hub.requests()[3].path == "/final");
  CHECK_FALSE(mentions(hub.requests()[3].text, "Authorization"));
  CHECK(other.requests().size() == 2);
  CHECK_FALSE(any_holds(other.requests(), "Authorization"));
  CHECK_FALSE(any_holds(other.requests(), kToken));
}

TEST_CASE("an unknown family on the hub is read by ranges, header by header, at one commit") {
  World world;
  const std::string shard = safetensors_bytes(
      R"({"b":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})" + std::string(200'000, ' '), std::string(12, 'x'));
  const HttpServer server([&](const WebRequest& request) {
    if (mentions(request.path, "/config.json")) return WebReply{200, {"X-Repo-Commit: " + kCommit}, kUnknown};
    if (mentions(request.path, "/model.safetensors.index.json")) {
      return WebReply{200, {}, R"({"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})"};
    }
    if (mentions(request.path, "/m-1.safetensors")) return ranged(request, kTensors);
    if (mentions(request.path, "/m-2.safetensors")) return ranged(request, shard);
    return kNoEntry;
  });
  world.variables["HF_ENDPOINT"] = server.address();
  const ModelSpec spec = world.resolve("org/novel");
  CHECK(parameter_count(spec) == 7);
  CHECK(mentions(spec.source, "headers only"));
  CHECK(any_holds(server.requests(), "/org/novel/resolve/" + kCommit + "/m-2.safetensors"));
  CHECK(any_holds(server.requests(), "Range: bytes=100000-200"));
}

TEST_CASE("a cache folder that others may write to isn't used, and that is said") {
  World world;
  const HttpServer server([](const WebRequest&) { return config_reply(); });
  world.variables["HF_ENDPOINT"] = server.address();
  world.variables["VRAMFIT_CACHE"] = (world.home.path() / "c").string();
  const fs::path hub = world.home.path() / "c/hub";
  fs::create_directories(hub);
  fs::permissions(hub, fs::perms::all);
  CHECK(world.resolve("org/name").model_type == "llama");
  REQUIRE(world.notes.size() == 1);
  CHECK(mentions(world.notes[0], "others may write to it"));
  CHECK(fs::is_empty(hub));
  fs::remove(hub);
  fs::create_directory_symlink(world.home.path(), hub);
  world.resolve("org/name");
  CHECK(mentions(world.notes.at(1), "it isn't a directory"));
}

TEST_CASE("a copy that others could have planted in the cache is not read, and that is said") {
  World world;
  world.variables["HF_HUB_OFFLINE"] = "1";
  world.variables["VRAMFIT_CACHE"] = (world.home.path() / "c").string();
  const std::string model = "c/hub/models--org--name/";
  const fs::path ref = world.home.write(model + "refs/main", kCommit);
  const fs::path config = world.home.write(model + "snapshots/" + kCommit + "/config.json", kConfig);
  const auto open_up = [](const fs::path& path) {
    fs::permissions(path, fs::perms::others_write, fs::perm_options::add);
  };
  const auto close = [](const fs::path& path) {
    fs::permissions(path, fs::perms::others_write, fs::perm_options::remove);
  };
  CHECK(world.resolve("org/name").model_type == "llama");
  CHECK(world.notes.empty());
  for (const fs::path& weak : {world.home.path() / "c/hub", ref.parent_path(), ref, config.parent_path(), config}) {
    CAPTURE(weak);
    open_up(weak);
    CHECK(mentions(world.error("org/name"), "not in the catalog or a cache"));
    CHECK(mentions(world.notes.back(), "isn't used as a cache: "));
    CHECK(mentions(world.notes.back(), "others may write to it"));
    close(weak);
  }
  CHECK(world.notes.size() == 5);
  fs::rename(config, config.string() + ".real");
  fs::create_symlink(config.string() + ".real", config);
  CHECK(mentions(world.error("org/name"), "not in the catalog or a cache"));
  CHECK(mentions(world.notes.back(), "it isn't a regular file"));
  if (geteuid() != 0) return;  // only root can give a file away
  fs::remove(config);
  fs::rename(config.string() + ".real", config);
  REQUIRE(chown(config.c_str(), 12345, 12345) == 0);
  CHECK(mentions(world.error("org/name"), "not in the catalog or a cache"));
  CHECK(mentions(world.notes.back(), "it belongs to another user"));
}

TEST_CASE("settings that would leak or mislead are refused without showing the token") {
  World world;
  for (const char* endpoint : {"http://example.com", "ftp://x", "https://user:pw@x", "https://", "https://x:99999"}) {
    CAPTURE(endpoint);
    world.variables["HF_ENDPOINT"] = endpoint;
    CHECK(mentions(world.error("org/name"), "HF_ENDPOINT"));
  }
  world.variables["HF_ENDPOINT"] = "http://127.0.0.1:1";
  world.variables["HF_TOKEN"] = kToken + "\r\nX-Evil: 1";
  CHECK(mentions(world.error("org/name"), "holds characters that no token has"));
}

}  // namespace
}  // namespace vramfit
