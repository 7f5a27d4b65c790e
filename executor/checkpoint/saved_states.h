// The parameters and optimizer states of a sharded checkpoint, read by rows, whatever mesh wrote it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.h"
#include "base/numbers/stored_numbers.h"
#include "executor/checkpoint/manifest.h"
#include "executor/checkpoint/weights.h"

namespace vramfit {

/// What a checkpoint holds of a parameter: this, and the optimizer's states under their names (program/optimizers).
inline constexpr std::string_view kParameterKind = "parameter";
/// Of a parameter whose numbers have a scale for the rows that a rank has: that.
inline constexpr std::string_view kScaleKind = "parameter_scale";
/// Of a frozen parameter that is quantized, in place of that: the bytes that a rank has of it, codes and scales.
inline constexpr std::string_view kCodesKind = "codes";

/// The name of a slice in a rank's file: "exp_avg/model.norm.weight@32" begins at row 32.
std::string slice_name(std::string_view kind, const std::string& parameter, std::int64_t first_row);

/// Of a state that has `each` numbers for every row.
struct StateRows {
  std::int64_t first = 0, count = 1, each = 1;
};

/// Supplies optimizer states, as WeightSource supplies parameters.
struct StateSource {
  virtual ~StateSource() = default;
  virtual void read_state(std::string_view kind, const Parameter& parameter, std::int64_t first_row, std::int64_t rows,
                          at::Tensor& into) = 0;
  /// A state whose numbers stand for blocks of a rank's elements, or are codes of such a block, or of a quantized
  /// parameter: as the rank saved it.
  /// Throws InputError unless one rank held just these rows.
  virtual void read_blocks(std::string_view kind, const Parameter& parameter, std::int64_t first_row, std::int64_t rows,
                           at::Tensor& into) = 0;
  /// A state with other rows than the parameter. One number for all of it is its first row.
  virtual void read_numbers(std::string_view kind, const Parameter& parameter, const StateRows& rows,
                            at::Tensor& into) = 0;
};

class SavedStates final : public WeightSource, public StateSource {
 public:
  /// Reads the headers of the files, which have been verified. Throws DamagedCheckpoint when a parameter of the graph
  /// is not there whole, or one that has scales (`is_scaled`, by number; empty: none) lacks one or another one has
  /// some; states are looked for when they are read. Reading throws ModelError when a file has another size by then.
  SavedStates(const std::string& folder, const Manifest& manifest, const Graph& graph,
              const std::vector<bool>& is_scaled = {});

  void read_rows(const Parameter& parameter, std::int64_t first_row, std::int64_t rows, at::Tensor& into) override;
  void read_state(std::string_view kind, const Parameter& parameter, std::int64_t first_row, std::int64_t rows,
                  at::Tensor& into) override;
  void read_blocks(std::string_view kind, const Parameter& parameter, std::int64_t first_row, std::int64_t rows,
                   at::Tensor& into) override;
  void read_numbers(std::string_view kind, const Parameter& parameter, const StateRows& rows,
                    at::Tensor& into) override;
  std::string description() const override { return folder_; }

 private:
  struct Slice {
    std::int64_t first_row = 0, rows = 0;
    std::vector<std::int64_t> shape;
    std::size_t file = 0;
    std::int64_t offset = 0;          // bytes
    std::optional<StoredFloat> type;  // none: bytes
    float scale = 0;                  // of a slice that is one: read with the header
  };
  void add_file(std::size_t rank);
  const File& open_file(std::size_t rank);
  void multiply_by_scales(const Parameter& parameter, std::int64_t first_row, std::int64_t rows,
                          at::Tensor& into) const;
  void check_parameter(const Parameter& parameter) const;
  void check_scales(const Parameter& parameter, bool is_scaled) const;
  void check_codes(const Parameter& parameter, const std::vector<Slice>& slices) const;

  std::string folder_;
  std::vector<std::int64_t> file_bytes_;  // by rank
  // One at a time, so that a checkpoint of thousands of ranks takes no more descriptors than one of a single rank.
  std::optional<File> open_;
  std::map<std::string, std::vector<Slice>, std::less<>> slices_;  // by "KIND/NAME", ascending rows
};

}  // namespace vramfit
