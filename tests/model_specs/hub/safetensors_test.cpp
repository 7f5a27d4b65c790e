#include "model_specs/hub/safetensors.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "base/error.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

using testing::safetensors_bytes;
using testing::TemporaryDirectory;

std::string message_of(const std::string& path) {
  try {
    list_tensors(path);
  } catch (const ModelError& error) {
    return error.what();
  }
  return "";
}

bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("tensors are listed with dtype, shape and place, in the order of their data") {
  const TemporaryDirectory directory;
  const std::string path = directory.write(
      "model.safetensors",
      safetensors_bytes(R"({"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},"__metadata__":{"format":"pt"},)"
                        R"("a":{"shape":[],"data_offsets":[0,4],"dtype":"F32"},)"
                        R"("none":{"dtype":"I64","shape":[3,0],"data_offsets":[16,16]},)"
                        R"("nibbles":{"dtype":"F4","shape":[3,2],"data_offsets":[16,19]}}  )",
                        std::string(19, 'x')));
  const Checkpoint found = list_tensors(path);
  REQUIRE(found.tensors.size() == 4);
  CHECK(found.files == std::vector<std::string>{path});
  CHECK(found.tensors[0].name == "a");
  CHECK(found.tensors[0].shape.empty());
  CHECK(found.tensors[1].dtype == "BF16");
  CHECK(found.tensors[1].shape == std::vector<std::int64_t>{2, 3});
  CHECK(found.tensors[1].offset == found.tensors[0].offset + 4);
  CHECK(found.tensors[3].bytes == Bytes{3});
  CHECK(found.tensors[3].offset + 3 == static_cast<std::int64_t>(std::filesystem::file_size(path)));
  CHECK(element_count(found.tensors) == 1 + 6 + 0 + 6);
}

TEST_CASE("a malformed header is refused with what is wrong") {
  const std::string good = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  std::string dims;
  for (int i = 0; i < 70; ++i) dims += i == 0 ? "1" : ",1";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "too short"},
      {"[]", "doesn't start with an object"},
      {" {" + good + "}", "doesn't start with an object"},
      {"\xEF\xBB\xBF{" + good + "}", "doesn't start with an object"},
      {"{" + good, "not valid JSON"},
      {"{" + good + "}x", "not valid JSON"},
      {"{\"\xFF\":1}", "not valid JSON"},
      {"{" + good + "," + good + "}", "tensor \"a\" is there twice"},
      {R"({"__metadata__":{},"__metadata__":{},)" + good + "}", "twice"},
      {R"({"__metadata__":{"x":1},)" + good + "}", "unexpected value"},
      {R"({"__metadata__":{"x":{}},)" + good + "}", "unexpected value"},
      {R"({"a":1})", "unexpected value"},
      {R"({"a":{}})", "needs dtype, shape and two data_offsets"},
      {R"({"a":{"dtype":"U8","dtype":"U8"}})", "repeated key \"dtype\""},
      {R"({"a":{"dtype":"U8","size":4}})", "unexpected or repeated key \"size\""},
      {R"({"a":{"dtype":"PICKLE"}})", "dtype \"PICKLE\" is unknown"},
      {R"({"a":{"dtype":null}})", "unexpected value"},
      {R"({"a":{"shape":[[4]]}})", "unexpected value"},
      {R"({"a":{"shape":[-4]}})", "unexpected value"},
      {R"({"a":{"shape":[4.0]}})", "unexpected value"},
      {R"({"a":{"shape":[18446744073709551615]}})", "unexpected value"},
      {R"({"a":{"shape":[)" + dims + "]}}", "more than 64 numbers"},
      {R"({"a":{"data_offsets":[0,1,2]}})", "more than 2 numbers"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0]}})", "two data_offsets"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", "don't agree"},
      {R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,4]}})", "don't agree"},
      {R"({"a":{"dtype":"F4","shape":[7],"data_offsets":[0,4]}})", "don't agree"},
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", "don't agree"},
      {R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}})", "starts at 1, not at 0"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})",
       "starts at 3, not at 2"},
      {R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
       "starts at 2, not at 3"},
      {R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}})", "truncated"},
      {R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", "trailing bytes"},
      {R"({"a":)" + std::string(100'000, '['), "unexpected value"},
      {R"({"a":)" + std::string(100'000, '{'), "not valid JSON"}};
  const TemporaryDirectory directory;
  for (const auto& wrong : cases) {
    const std::string message = message_of(directory.write("m.safetensors", safetensors_bytes(wrong.first, "data")));
    CAPTURE(wrong.second);
    CAPTURE(message);
    CHECK(mentions(message, wrong.second));
    CHECK(message.size() < 600);
  }
}

TEST_CASE("a header length that can't be is refused before memory is taken") {
  const TemporaryDirectory directory;
  const auto with_length = [&](std::uint64_t length) {
    std::string bytes = safetensors_bytes("{}", "");
    std::memcpy(bytes.data(), &length, sizeof(length));
    return message_of(directory.write("m.safetensors", bytes));
  };
  CHECK(mentions(with_length(~std::uint64_t{0}), "not a safetensors file"));
  CHECK(mentions(with_length(100'000'001), "not a safetensors file"));
  CHECK(mentions(with_length(100'000'000), "truncated"));
  CHECK(mentions(with_length(3), "truncated"));
  CHECK(mentions(with_length(1), "too short"));
  CHECK(mentions(message_of(directory.write("m.safetensors", "1234567")), "too short"));
  CHECK(with_length(2).empty());
}

TEST_CASE("pickles are refused by name, before they are opened") {
  const TemporaryDirectory directory;
  for (const char* name :
       {"pytorch_model.bin", "w.pt", "w.pth", "w.ckpt", "w.pkl", "w.pickle", "w.pt2", "__0_0.distcp"}) {
    CAPTURE(name);
    CHECK(mentions(message_of((directory.path() / name).string()), "never unpickled; convert to safetensors"));
  }
  directory.write("config.json", "{}");
  CHECK(mentions(message_of(directory.path()), "holds no .safetensors file"));
  directory.write("pytorch_model.bin", "x");
  CHECK(mentions(message_of(directory.path()), "never unpickled"));
}

TEST_CASE("shard names of an index that lead elsewhere are refused") {
  const TemporaryDirectory directory, outside;
  const std::string good = safetensors_bytes(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "data");
  outside.write("m.safetensors", good);
  const std::string elsewhere = (outside.path() / "m.safetensors").string();
  for (const std::string& name :
       {std::string("../m.safetensors"), elsewhere, std::string("sub/m.safetensors"), std::string("m.bin"),
        std::string(R"(a\\m.safetensors)"), std::string(R"(m\u0000.safetensors)"), std::string(".safetensors"),
        std::string("")}) {
    CAPTURE(name);
    const std::string index =
        directory.write("model.safetensors.index.json", R"({"weight_map":{"a":")" + name + "\"}}");
    CHECK(mentions(message_of(index), "isn't the plain name"));
  }
  std::filesystem::create_symlink(elsewhere, directory.path() / "link.safetensors");
  directory.write("model.safetensors.index.json", R"({"weight_map":{"a":"link.safetensors"}})");
  CHECK(mentions(message_of(directory.path()), "leads out of its folder"));
}

TEST_CASE("an index is refused when it is malformed or disagrees with its shards") {
  const TemporaryDirectory directory;
  directory.write("m.safetensors",
                  safetensors_bytes(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "data"));
  const auto with = [&](const std::string& index) {
    return message_of(directory.write("model.safetensors.index.json", index));
  };
  CHECK(mentions(with("[]"), "no \"weight_map\""));
  CHECK(mentions(with(R"({"weight_map":{}})"), "entries"));
  CHECK(mentions(with(R"({"weight_map":{"a":1}})"), "plain name"));
  CHECK_FALSE(with(R"({"weight_map":{"a":"m.safetensors","a":"m.safetensors"}})").empty());
  CHECK_FALSE(with(R"({"weight_map":)").empty());
  CHECK(mentions(with(R"({"weight_map":{"b":"m.safetensors"}})"), "tensor \"b\" isn't in m.safetensors"));
  CHECK(mentions(with(R"({"weight_map":{"a":"gone.safetensors"}})"), "No such file"));
  CHECK(with(R"({"weight_map":{"a":"m.safetensors"}})").empty());
}

TEST_CASE("a Hugging Face cache snapshot may link to the blobs of its own model") {
  const TemporaryDirectory directory;
  const std::filesystem::path model = directory.path() / "models--org--name";
  directory.write("models--org--name/blobs/abc",
                  safetensors_bytes(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "data"));
  const std::filesystem::path snapshot = model / "snapshots" / "0123";
  std::filesystem::create_directories(snapshot);
  std::filesystem::create_symlink("../../blobs/abc", snapshot / "model.safetensors");
  CHECK(list_tensors(snapshot).tensors.size() == 1);
}

}  // namespace
}  // namespace vramfit
