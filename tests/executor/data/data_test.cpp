#include "executor/data/data.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include <doctest/doctest.h>
#include <sys/stat.h>

#include "base/error.h"
#include "executor/data/row_order.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

using testing::TemporaryDirectory;

template <typename Integer>
std::string bytes_of(const std::vector<Integer>& values) {
  std::string bytes(values.size() * sizeof(Integer), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <typename Integer>
std::vector<Integer> counting(std::size_t n) {
  std::vector<Integer> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<Integer>(i);
  return values;
}

DataOptions options(const std::string& path, std::int64_t vocab_size, std::int64_t sequence) {
  DataOptions made;
  made.paths = {path};
  made.vocab_size = vocab_size;
  made.sequence = sequence;
  return made;
}

struct Row {
  std::vector<std::int64_t> ids, labels;
  bool operator==(const Row&) const = default;
};

Row read(const Dataset& data, std::int64_t index, std::int64_t sequence) {
  Row row{std::vector<std::int64_t>(static_cast<std::size_t>(sequence)),
          std::vector<std::int64_t>(static_cast<std::size_t>(sequence))};
  data.row(index, row.ids, row.labels);
  return row;
}

std::string npy(const std::string& dict, const std::string& data, int version = 1) {
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(version);
  bytes += '\0';
  bytes += static_cast<char>(dict.size() & 0xFFU);
  bytes += static_cast<char>(dict.size() >> 8U);
  if (version > 1) bytes += std::string(2, '\0');
  return bytes + dict + data;
}

std::string message_of(const DataOptions& wrong) {
  try {
    open_dataset(wrong);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("each epoch visits every row once, in an order of its own") {
  for (const std::int64_t rows : {1, 2, 3, 7, 64, 100, 1025}) {
    CAPTURE(rows);
    std::vector<std::int64_t> epochs[2];
    for (std::int64_t i = 0; i < 2 * rows; ++i) epochs[i / rows].push_back(file_row(i, rows, 5));
    for (const auto& epoch : epochs) {
      const std::set<std::int64_t> seen(epoch.begin(), epoch.end());
      CHECK(std::ssize(seen) == rows);
      CHECK(*seen.begin() == 0);
      CHECK(*seen.rbegin() == rows - 1);
    }
    if (rows >= 64) CHECK(epochs[0] != epochs[1]);
  }
  std::int64_t moved = 0;
  for (std::int64_t i = 0; i < 1000; ++i) moved += file_row(i, 1000, 1) != file_row(i, 1000, 2) ? 1 : 0;
  CHECK(moved > 900);
}

TEST_CASE("a row of a .bin file is its tokens, and its labels are the tokens that follow") {
  const TemporaryDirectory directory;
  for (const int width : {2, 4}) {
    CAPTURE(width);
    const std::string bytes =
        width == 2 ? bytes_of(counting<std::uint16_t>(41)) : bytes_of(counting<std::uint32_t>(41));
    DataOptions asked = options(directory.write("t.bin", bytes), width == 2 ? 50 : 100'000, 8);
    const auto data = open_dataset(asked);
    REQUIRE(data->rows() == 5);
    std::set<std::int64_t> firsts;
    for (std::int64_t i = 0; i < 5; ++i) {
      const Row row = read(*data, i, 8);
      for (std::size_t t = 0; t < 8; ++t) {
        CHECK(row.ids[t] == row.ids[0] + std::int64_t(t));
        CHECK(row.labels[t] == row.ids[t] + 1);
      }
      CHECK(data->label_tokens(i) == 8);
      firsts.insert(row.ids[0]);
    }
    CHECK(firsts == std::set<std::int64_t>{0, 8, 16, 24, 32});
  }
}

TEST_CASE("the token width can be given, and a file that doesn't divide by it is refused") {
  const TemporaryDirectory directory;
  DataOptions asked = options(directory.write("t.bin", bytes_of(counting<std::uint32_t>(9))), 50, 8);
  asked.token_bytes = 4;
  CHECK(open_dataset(asked)->rows() == 1);
  asked.paths = {directory.write("odd.bin", std::string(41, '\0'))};
  CHECK(mentions(message_of(asked), "41 bytes are not a multiple of 4-byte tokens"));
  asked.token_bytes = 3;
  CHECK(mentions(message_of(asked), "--token-bytes 3"));
}

TEST_CASE("a token id outside the vocabulary is named with its file and position") {
  const TemporaryDirectory directory;
  std::vector<std::uint16_t> ids = counting<std::uint16_t>(20);
  ids[13] = 60000;
  const DataOptions asked = options(directory.write("bad.bin", bytes_of(ids)), 50, 8);
  const std::string message = message_of(asked);
  CHECK(mentions(message, "bad.bin"));
  CHECK(mentions(message, "token 60000 at position 13"));
  CHECK_THROWS_AS(open_dataset(asked), ModelError);
}

TEST_CASE("a file that changes while in use gives an error, not a wrong id") {
  const TemporaryDirectory directory;
  const DataOptions asked = options(directory.write("t.bin", bytes_of(counting<std::uint16_t>(9))), 50, 8);
  const auto data = open_dataset(asked);
  directory.write("t.bin", bytes_of(std::vector<std::uint16_t>(9, 999)));
  CHECK_THROWS_AS(read(*data, 0, 8), ModelError);
  directory.write("t.bin", "");
  CHECK_THROWS_WITH_AS(read(*data, 0, 8), doctest::Contains("became shorter"), Error);
}

TEST_CASE("a .npy array of integers in one or two dims is read in C order") {
  const TemporaryDirectory directory;
  const std::string one = "{'descr': '<i8', 'fortran_order': False, 'shape': (17,), }\n";
  const std::string two = "{\"shape\": (3, 6), 'fortran_order': False, 'descr': '<u2'}";
  const auto first =
      open_dataset(options(directory.write("a.npy", npy(one, bytes_of(counting<std::int64_t>(17)))), 50, 8));
  const auto second =
      open_dataset(options(directory.write("b.npy", npy(two, bytes_of(counting<std::uint16_t>(18)), 2)), 50, 17));
  CHECK(first->rows() == 2);
  CHECK(second->rows() == 1);
  CHECK(read(*second, 0, 17).labels.back() == 17);
}

TEST_CASE("a malformed or unsuitable .npy file is refused with what is wrong") {
  const TemporaryDirectory directory;
  const std::string data = bytes_of(counting<std::uint16_t>(20));
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "not a .npy file"},
      {"\x93NUMPY", "not a .npy file"},
      {npy("{'descr': '<f4', 'fortran_order': False, 'shape': (10,)}", data), "little-endian integers"},
      {npy("{'descr': '>i2', 'fortran_order': False, 'shape': (20,)}", data), "little-endian integers"},
      {npy("{'descr': '<u2', 'fortran_order': True, 'shape': (4, 5)}", data), "fortran_order"},
      {npy("{'descr': '<u2', 'fortran_order': False, 'shape': (1, 4, 5)}", data), "more than two dims"},
      {npy("{'descr': '<u2', 'fortran_order': False, 'shape': ()}", data), "a single number"},
      {npy("{'descr': '<u2', 'fortran_order': False, 'shape': (21,)}", data), "needs more"},
      {npy("{'descr': '<u2', 'fortran_order': False, 'shape': (19,)}", data), "needs 19"},
      {npy("{'descr': '<u2', 'fortran_order': False, 'shape': (9223372036854775807, 9223372036854775807)}", data),
       "needs more"},
      {npy("{'descr': '<u2', 'fortran_order': False, 'shape': (-1,)}", data), "bad size"},
      {npy("{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999999999999,)}", data), "bad size"},
      {npy("{'descr': '<u2', 'descr': '<u2', 'shape': (20,)}", data), "repeated key"},
      {npy("{'descr': '<u2', 'shape': (20,)}", data), "needs the keys"},
      {npy("{'descr': '<u2', 'fortran_order': False, 'shape': (20,)}; import os", data), "after the closing brace"},
      {npy("{'descr", data), "never closed"},
      {npy("{}", data, 9), "version 9"},
      {npy("{}", "", 1).substr(0, 11), "not a .npy file"},
      {npy(std::string(300, ' '), "").substr(0, 50), "longer than the file"}};
  for (const auto& wrong : cases) {
    const std::string message = message_of(options(directory.write("x.npy", wrong.first), 50, 8));
    CAPTURE(wrong.second);
    CAPTURE(message);
    CHECK(mentions(message, wrong.second));
  }
}

TEST_CASE("text is read as bytes, a directory's files sorted by path and its links left out") {
  const TemporaryDirectory directory, outside;
  directory.write("docs/b.txt", "cd");
  directory.write("docs/a.md", "ab");
  directory.write("docs/sub/z.md", "ef\n");
  directory.write("docs/.hidden/x.md", "no");
  directory.write("docs/c.bin", "no");
  outside.write("secret.txt", "secret");
  const std::filesystem::path docs = directory.path() / "docs";
  std::filesystem::create_directory_symlink(docs, docs / "sub" / "loop");
  std::filesystem::create_directory_symlink(outside.path(), docs / "out");
  std::filesystem::create_symlink(outside.path() / "secret.txt", docs / "link.txt");
  const auto data = open_dataset(options(docs.string(), 256, 6));
  CHECK(data->rows() == 1);
  CHECK(read(*data, 0, 6) == Row{{'a', 'b', 'c', 'd', 'e', 'f'}, {'b', 'c', 'd', 'e', 'f', '\n'}});
}

TEST_CASE("data that can't be used is refused with a line that says why") {
  const TemporaryDirectory directory;
  const std::string text = directory.write("t.txt", "hello world");
  CHECK(mentions(message_of(options(text, 255, 4)), "need a vocabulary of 256; this model's has 255"));
  CHECK(mentions(message_of(options(text, 256, 11)), "11 tokens, but one row takes 11 + 1"));
  CHECK(mentions(message_of(options(directory.write("none.txt", ""), 256, 1)), "0 tokens, but one row takes 1 + 1"));
  CHECK(mentions(message_of(options(directory.write("w.pt", "x"), 256, 4)), "unknown kind of file"));
  CHECK(mentions(message_of(options(directory.path() / "missing.bin", 256, 4)), "No such file"));
  std::filesystem::create_directory(directory.path() / "empty");
  CHECK(mentions(message_of(options(directory.path() / "empty", 256, 4)), "no *.md or *.txt"));
  const std::string fifo = directory.path() / "fifo.bin";
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(mentions(message_of(options(fifo, 256, 4)), "not a regular file"));
  DataOptions nothing;
  CHECK(mentions(message_of(nothing), "no data given"));
}

TEST_CASE("several files are one sequence, so that rows cross from one to the next") {
  const TemporaryDirectory directory;
  DataOptions asked = options(directory.write("a.txt", "abc"), 256, 5);
  asked.paths.push_back(directory.write("b.txt", "def"));
  const auto data = open_dataset(asked);
  CHECK(read(*data, 0, 5).labels.back() == 'f');
}

TEST_CASE("a label that is ignored is none, and isn't counted") {
  const TemporaryDirectory directory;
  const std::vector<std::uint16_t> ids{1, 0, 2, 0, 0, 3, 0, 0, 0, 0};
  const DataOptions asked = options(directory.write("t.bin", bytes_of(ids)), 50, 9);
  const auto data = without_label(open_dataset(asked), 0, 9);
  const Row row = read(*data, 0, 9);
  CHECK(row.ids == std::vector<std::int64_t>{1, 0, 2, 0, 0, 3, 0, 0, 0});
  CHECK(row.labels == std::vector<std::int64_t>{-100, 2, -100, -100, 3, -100, -100, -100, -100});
  CHECK(data->label_tokens(0) == 2);
  CHECK(data->rows() == 1);
}

TEST_CASE("positions of masked rows that have no label aren't counted either where one is ignored") {
  DataOptions asked = options("", 50, 64);
  asked.masked_lm = true;
  const auto all = synthetic_dataset(asked), some = without_label(synthetic_dataset(asked), 7, 64);
  std::int64_t left_out = 0;
  for (std::int64_t index = 0; index < 50; ++index) {
    const Row row = read(*all, index, 64);
    const auto ignored = std::ranges::count(row.labels, 7);
    CHECK(some->label_tokens(index) == all->label_tokens(index) - ignored);
    left_out += ignored;
  }
  CHECK(left_out > 0);
}

TEST_CASE("masked rows label 15 % of positions, known without reading ids, by the 80/10/10 rule") {
  const TemporaryDirectory directory;
  DataOptions asked =
      options(directory.write("t.bin", bytes_of(std::vector<std::uint16_t>(64 * 2000 + 1, 7))), 30000, 64);
  asked.masked_lm = true;
  const auto data = open_dataset(asked);
  std::int64_t labelled = 0;
  std::map<std::string, std::int64_t> seen;
  for (std::int64_t i = 0; i < data->rows(); ++i) {
    const Row row = read(*data, i, 64);
    std::int64_t here = 0;
    for (std::size_t t = 0; t < 64; ++t) {
      if (row.labels[t] == -100) {
        REQUIRE(row.ids[t] == 7);
        continue;
      }
      REQUIRE(row.labels[t] == 7);
      ++here;
      ++seen[row.ids[t] == 103 ? "mask" : (row.ids[t] == 7 ? "same" : "random")];
    }
    REQUIRE(here == data->label_tokens(i));
    REQUIRE(here > 0);
    labelled += here;
  }
  const double share = double(labelled) / (2000.0 * 64);
  CHECK(share == doctest::Approx(0.15).epsilon(0.03));
  CHECK(double(seen["mask"]) / double(labelled) == doctest::Approx(0.8).epsilon(0.02));
  CHECK(double(seen["random"]) / double(labelled) == doctest::Approx(0.1).epsilon(0.06));
  CHECK(double(seen["same"]) / double(labelled) == doctest::Approx(0.1).epsilon(0.06));
}

TEST_CASE("a masked row too short for a draw still carries one label") {
  const TemporaryDirectory directory;
  DataOptions asked = options(directory.write("t.bin", bytes_of(counting<std::uint16_t>(200))), 300, 1);
  asked.masked_lm = true;
  const auto data = open_dataset(asked);
  for (std::int64_t i = 0; i < data->rows(); ++i) CHECK(data->label_tokens(i) == 1);
}

TEST_CASE("masks differ between epochs and seeds, and are the same when a row is read again") {
  const TemporaryDirectory directory;
  DataOptions asked = options(directory.write("t.bin", bytes_of(counting<std::uint16_t>(65))), 300, 64);
  asked.masked_lm = true;
  const auto data = open_dataset(asked);
  CHECK(read(*data, 0, 64) == read(*data, 0, 64));
  CHECK_FALSE(read(*data, 0, 64) == read(*data, 1, 64));
  asked.seed = 1;
  CHECK_FALSE(read(*data, 0, 64) == read(*open_dataset(asked), 0, 64));
}

}  // namespace
TEST_CASE("synthetic tokens are a function of the seed and the row, and fill the vocabulary") {
  DataOptions asked = options("", 50, 16);
  asked.seed = 3;
  const auto data = synthetic_dataset(asked);
  std::set<std::int64_t> seen;
  for (const std::int64_t index : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1} << 40}) {
    const Row row = read(*data, index, 16);
    CHECK(row == read(*synthetic_dataset(asked), index, 16));
    CHECK(std::equal(row.ids.begin() + 1, row.ids.end(), row.labels.begin()));
    for (const std::int64_t id : row.ids) {
      CHECK(id >= 0);
      CHECK(id < 50);
      seen.insert(id);
    }
    CHECK(data->label_tokens(index) == 16);
  }
  CHECK(seen.size() > 20);
  CHECK_FALSE(read(*data, 0, 16) == read(*data, 1, 16));
  asked.seed = 4;
  CHECK_FALSE(read(*data, 0, 16) == read(*synthetic_dataset(asked), 0, 16));
}

TEST_CASE("synthetic tokens for masked models have labels where the mask draws them") {
  DataOptions asked = options("", 1000, 64);
  asked.masked_lm = true;
  const auto data = synthetic_dataset(asked);
  const Row row = read(*data, 5, 64);
  const auto labels = std::ranges::count_if(row.labels, [](std::int64_t label) { return label >= 0; });
  CHECK(labels == data->label_tokens(5));
  CHECK(labels > 0);
  CHECK(labels < 64);
}

}  // namespace vramfit
