#include "executor/checkpoint/saved_states.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "executor/checkpoint/safetensors_header.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

using testing::TemporaryDirectory;

const Parameter kMatrix{"matrix", {7, 3}};

struct Rows {
  std::string kind = "parameter";
  std::int64_t first = 0, count = 0, columns = 3;
};

/// A rank's file: element i of a matrix is the number i.
std::string file_of(const std::vector<Rows>& slices) {
  std::vector<HeaderEntry> entries;
  std::string data;
  for (const Rows& rows : slices) {
    entries.push_back({slice_name(rows.kind, "matrix", rows.first), Dtype::f32, {rows.count, rows.columns}});
    for (std::int64_t i = 0; i < rows.count * rows.columns; ++i) {
      const auto number = static_cast<float>(rows.first * rows.columns + i);
      data.append(reinterpret_cast<const char*>(&number), sizeof number);
    }
  }
  return safetensors_header(entries, false) + data;
}

SavedStates opened(const TemporaryDirectory& directory, const std::vector<std::string>& files,
                   const std::vector<bool>& is_scaled = {}) {
  Manifest manifest;
  for (std::size_t rank = 0; rank < files.size(); ++rank) {
    directory.write(rank_file(rank), files[rank]);
    manifest.files.emplace_back();
  }
  Graph graph;
  graph.parameters = {kMatrix};
  return {directory.path().string(), manifest, graph, is_scaled};
}

TEST_CASE("rows written by three ranks are read by any other number of ranks") {
  const TemporaryDirectory directory;
  SavedStates states = opened(directory, {file_of({{"parameter", 0, 3}}), file_of({{"parameter", 3, 3}}),
                                          file_of({{"parameter", 6, 1}, {"exp_avg", 0, 7}})});
  for (std::int64_t first = 0; first < 7; ++first) {
    for (std::int64_t rows = 1; first + rows <= 7; ++rows) {
      const at::Tensor expected = at::arange(first * 3, (first + rows) * 3, at::kFloat);
      at::Tensor into = at::full({rows * 3}, -1.0, at::kFloat);
      states.read_rows(kMatrix, first, rows, into);
      CHECK(into.equal(expected));
      into.fill_(-1.0);
      states.read_state("exp_avg", kMatrix, first, rows, into);
      CHECK(into.equal(expected));
    }
  }
  at::Tensor into = at::zeros({21});
  CHECK_THROWS_AS(states.read_state("exp_avg_sq", kMatrix, 0, 7, into), DamagedCheckpoint);
}

TEST_CASE("files that don't hold a parameter whole and once are refused") {
  const TemporaryDirectory directory;
  const std::string all = file_of({{"parameter", 0, 7}});
  CHECK_NOTHROW(opened(directory, {all}));
  const std::vector<std::vector<std::string>> wrong{{file_of({{"parameter", 0, 3}})},
                                                    {file_of({{"parameter", 0, 3}}), file_of({{"parameter", 4, 3}})},
                                                    {file_of({{"parameter", 0, 4}}), file_of({{"parameter", 3, 4}})},
                                                    {file_of({{"parameter", 0, 8}})},
                                                    {file_of({{"parameter", 0, 7, 4}})},
                                                    {all, all},
                                                    {file_of({{"exp_avg", 0, 7}})},
                                                    {"", all},
                                                    {"not a safetensors file"},
                                                    {all + "x"},
                                                    {all.substr(0, all.size() - 1)}};
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    CAPTURE(i);
    CHECK_THROWS_AS(opened(directory, wrong[i]), DamagedCheckpoint);
  }
}

/// A rank's file: codes of the matrix, each a letter that the first row chooses.
std::string codes_of(Dtype dtype, std::int64_t first_row, std::int64_t numbers, std::string_view kind = kCodesKind) {
  const std::vector<HeaderEntry> entries{{slice_name(kind, "matrix", first_row), dtype, {numbers}}};
  return safetensors_header(entries, false) +
         std::string(static_cast<std::size_t>(numbers * dtype_bytes(dtype).n), static_cast<char>('a' + first_row));
}

TEST_CASE("codes that can't be a parameter's are refused before any is read") {
  const TemporaryDirectory directory;
  const std::string whole = codes_of(Dtype::u8, 0, 20);
  CHECK_NOTHROW(opened(directory, {whole}));
  CHECK_NOTHROW(opened(directory, {codes_of(Dtype::u8, 6, 20), whole}));
  const std::vector<HeaderEntry> square{{slice_name(kCodesKind, "matrix", 0), Dtype::u8, {4, 5}}};
  const std::vector<std::vector<std::string>> wrong{{codes_of(Dtype::f16, 0, 20)},
                                                    {whole, codes_of(Dtype::f16, 4, 20)},
                                                    {safetensors_header(square, false) + std::string(20, 'a')},
                                                    {codes_of(Dtype::u8, 1, 20)},
                                                    {whole, whole},
                                                    {whole, codes_of(Dtype::u8, 7, 20)},
                                                    {whole, file_of({{"parameter", 0, 7}})}};
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    CAPTURE(i);
    CHECK_THROWS_AS(opened(directory, wrong[i]), DamagedCheckpoint);
  }
}

/// A rank's file: the matrix in fp16, all ones, and its scale.
std::string scaled_of(std::int64_t first, std::int64_t rows, std::optional<float> scale, Dtype dtype = Dtype::f16,
                      std::vector<std::int64_t> scale_shape = {1}) {
  std::vector<HeaderEntry> entries{{slice_name(kParameterKind, "matrix", first), dtype, {rows, 3}}};
  std::string data;
  for (std::int64_t i = 0; i < rows * 3; ++i) {
    data += dtype == Dtype::f16 ? std::string("\x00\x3c", 2) : std::string("\x00\x00\x80\x3f", 4);
  }
  if (scale) {
    data.append(reinterpret_cast<const char*>(&*scale), sizeof *scale);
    entries.push_back({slice_name(kScaleKind, "matrix", first), Dtype::f32, std::move(scale_shape)});
  }
  return safetensors_header(entries, false) + data;
}

TEST_CASE("scales are there for each slice of a master, powers of two, and nowhere else") {
  const TemporaryDirectory directory;
  SavedStates states = opened(directory, {scaled_of(0, 4, 0.5F), scaled_of(4, 3, 0x1p-126F)}, {true});
  at::Tensor into = at::zeros({9});
  states.read_rows(kMatrix, 2, 3, into);
  CHECK(into.equal(at::cat({at::full({6}, 0.5), at::full({3}, 0x1p-126)})));
  for (const float scale : {0.0F, -1.0F, 3.0F, 0x1p-127F, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    CAPTURE(scale);
    CHECK_THROWS_AS(opened(directory, {scaled_of(0, 4, 0.5F), scaled_of(4, 3, scale)}, {true}), DamagedCheckpoint);
  }
  const std::vector<std::vector<std::string>> wrong{{scaled_of(0, 7, std::nullopt)},
                                                    {scaled_of(0, 4, 0.5F), scaled_of(4, 3, std::nullopt)},
                                                    {scaled_of(0, 7, 0.5F, Dtype::f32)},
                                                    {scaled_of(0, 7, 0.5F, Dtype::f16, {1, 1})}};
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    CAPTURE(i);
    CHECK_THROWS_AS(opened(directory, wrong[i], {true}), DamagedCheckpoint);
  }
  for (const Dtype dtype : {Dtype::f16, Dtype::f32}) {
    CHECK_THROWS_WITH_AS(opened(directory, {scaled_of(0, 7, 0.5F, dtype)}), doctest::Contains("has a scale"),
                         DamagedCheckpoint);
  }
}

TEST_CASE("codes are read as the rank saved them, and refused unless they are the rank's") {
  const TemporaryDirectory directory;
  const auto read = [](SavedStates& states, std::int64_t first_row, std::int64_t rows, at::ScalarType type) {
    at::Tensor into = at::zeros({20}, type);
    states.read_blocks(kCodesKind, kMatrix, first_row, rows, into);
    return into;
  };
  SavedStates states = opened(directory, {codes_of(Dtype::u8, 0, 20), codes_of(Dtype::u8, 4, 20)});
  CHECK(read(states, 0, 4, at::kByte).eq('a').all().item<bool>());
  CHECK(read(states, 4, 3, at::kByte).eq('e').all().item<bool>());
  for (const auto& [first, rows] : {std::pair(0, 7), std::pair(0, 3), std::pair(4, 2), std::pair(3, 4)}) {
    CHECK_THROWS_AS(read(states, first, rows, at::kByte), InputError);
  }
  SavedStates short_ones = opened(directory, {codes_of(Dtype::u8, 0, 19)});
  CHECK_THROWS_WITH_AS(read(short_ones, 0, 7, at::kByte), doctest::Contains("19 numbers, 20 are needed"),
                       DamagedCheckpoint);
  CHECK_THROWS_WITH_AS(read(states, 0, 4, at::kChar), doctest::Contains("numbers of another type"), DamagedCheckpoint);
  SavedStates halves = opened(directory, {file_of({{"parameter", 0, 7}}), codes_of(Dtype::f16, 0, 20, "scales")});
  for (const at::ScalarType type : {at::kByte, at::kBFloat16}) {
    at::Tensor into = at::zeros({20}, type);
    CHECK_THROWS_WITH_AS(halves.read_blocks("scales", kMatrix, 0, 7, into),
                         doctest::Contains("numbers of another type"), DamagedCheckpoint);
  }
  // In place of a parameter that isn't quantized, and the other way round.
  at::Tensor whole = at::zeros({21});
  CHECK_THROWS_AS(states.read_rows(kMatrix, 0, 7, whole), DamagedCheckpoint);
  SavedStates rows = opened(directory, {file_of({{"parameter", 0, 7}})});
  CHECK_THROWS_WITH_AS(read(rows, 0, 7, at::kByte), doctest::Contains("codes of matrix is missing"), DamagedCheckpoint);
}

TEST_CASE("a checkpoint file that becomes shorter after its header was read is an error that says where, no signal") {
  const TemporaryDirectory directory;
  const Parameter large{"matrix", {1 << 20, 3}};  // 12 MiB, so that the cut lies pages before the end
  Manifest manifest;
  manifest.files.resize(2);
  const auto half = large.shape[0] / 2;
  const std::string paths[]{directory.write(rank_file(0), file_of({{"parameter", 0, half}})),
                            directory.write(rank_file(1), file_of({{"parameter", half, half}}))};
  Graph graph;
  graph.parameters = {large};
  SavedStates states(directory.path().string(), manifest, graph);
  const auto message = [&](std::int64_t first, std::int64_t rows, at::ScalarType type) -> std::string {
    at::Tensor into = at::zeros({rows * 3}, type);
    try {
      states.read_rows(large, first, rows, into);
    } catch (const ModelError& error) {
      return error.what();
    }
    return "";
  };
  const auto size = [&](int rank) { return static_cast<std::int64_t>(std::filesystem::file_size(paths[rank])); };
  const auto mentions = [](const std::string& text, const std::string& part) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  };
  CHECK(message(0, half, at::kFloat).empty());
  const std::int64_t before[]{size(0), size(1)};
  // One file is open and has been read; the other was closed after its header.
  for (const std::string& path : paths) std::filesystem::resize_file(path, 1 << 20);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    CAPTURE(type);
    mentions(message(0, half, type), "checkpoint " + paths[0] + ": ends at byte 1048576 of " +
                                         std::to_string(before[0]) + ": it became shorter while in use");
    mentions(message(0, half, type), "start again when nothing writes to it");
    CHECK(message(0, 1000, type).empty());  // what is still there
    CHECK(message(half, 1000, type) ==
          "checkpoint " + paths[1] + ": 1048576 bytes, it had " + std::to_string(before[1]) +
              " when the run began: it changed while in use; start again when nothing writes to it");
  }
}

}  // namespace
}  // namespace vramfit
