// Strict parsing of safetensors files: only headers, never the data, and nothing that could run code.
// Format: https://github.com/huggingface/safetensors#format
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/text/units.h"

namespace vramfit {

class File;

/// A tensor as a checkpoint stores it.
struct StoredTensor {
  std::string name;
  std::string_view dtype;  // as in the file: "BF16"; points into a table
  std::vector<std::int64_t> shape;
  int file = 0;             // index in Checkpoint::files
  std::int64_t offset = 0;  // bytes from the start of that file
  Bytes bytes;
};

struct Checkpoint {
  std::vector<std::string> files;  // paths
  std::vector<StoredTensor> tensors;
};

/// A .safetensors file, an index.json, or a directory that holds model.safetensors.index.json, model.safetensors or one
/// other .safetensors file. Throws ModelError for a malformed file, a shard that is missing or lies outside the
/// directory, a tensor that its shard lacks, and for every format that would have to be unpickled.
Checkpoint list_tensors(const std::string& path);

/// Whether the name says that a file is a pickle, or holds some (.bin, .pt, .pth, .ckpt, .pkl, .pickle, .pt2, .distcp).
bool is_pickle_name(std::string_view name);

/// Throws ModelError for a path with such a name, saying what to do instead.
void refuse_pickle(const std::string& path);

inline constexpr std::int64_t kLengthBytes = 8;              // of the header's length, before it
inline constexpr std::int64_t kLongestHeader = 100'000'000;  // the format's own limit
inline constexpr std::size_t kMostTensors = 1'000'000;       // of one file
inline constexpr std::int64_t kLongestIndex = std::int64_t{1} << 25;

/// The header's length from a file's first 8 bytes; throws ModelError when it isn't in 2 .. kLongestHeader or exceeds
/// a file of `file_bytes`.
std::int64_t header_length(std::string_view first_bytes, std::int64_t file_bytes, const std::string& where);

/// The tensors of one file from its header (without the length), in the order of their data. Offsets count from the
/// start of the file, `file` is 0. Throws ModelError unless the data of all tensors fills the rest of the file exactly,
/// without holes or overlaps, and no name repeats.
std::vector<StoredTensor> parse_header(std::string_view header, std::int64_t file_bytes, const std::string& where);

/// The same for an open file.
std::vector<StoredTensor> read_header(const File& file);

/// The contents of model.safetensors.index.json.
struct ShardIndex {
  std::vector<std::string> shards;  // plain names, sorted
  struct Entry {
    std::string tensor;
    int shard = 0;
  };
  std::vector<Entry> entries;  // sorted by tensor
};

/// Throws ModelError for anything but a "weight_map" of strings, and for shard names that aren't plain file names
/// ending in .safetensors.
ShardIndex parse_shard_index(std::string_view json, const std::string& where);

/// The tensors that the index names, out of those that each shard holds; throws ModelError for one that is missing.
std::vector<StoredTensor> pick_indexed(const ShardIndex& index, std::vector<std::vector<StoredTensor>> shards,
                                       const std::string& where);

/// Elements of all tensors; throws ModelError on overflow.
std::int64_t element_count(std::span<const StoredTensor> tensors);

}  // namespace vramfit
