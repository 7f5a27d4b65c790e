#include "executor/checkpoint/saved_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

#include "base/text/suggest.h"
#include "base/text/units.h"
#include "executor/checkpoint/read_numbers.h"
#include "executor/checkpoint/write_torch.h"
#include "model_specs/hub/safetensors.h"

namespace vramfit {
namespace {

constexpr char kRowMark = '@';

[[noreturn]] void damaged(const std::string& where, const std::string& why) {
  throw DamagedCheckpoint(fmt::format("checkpoint {}: {}", printable(where), why));
}

/// "KIND/NAME" and the first row; nothing when `name` is not of that form.
std::optional<std::pair<std::string, std::int64_t>> split(const std::string& name) {
  const std::size_t mark = name.rfind(kRowMark);
  if (mark == std::string::npos) return std::nullopt;
  std::int64_t row = 0;
  const char* const last = name.data() + name.size();
  const auto [end, error] = std::from_chars(name.data() + mark + 1, last, row);
  if (error != std::errc() || end != last || row < 0) return std::nullopt;
  return std::pair(name.substr(0, mark), row);
}

std::string key_of(std::string_view kind, const std::string& parameter) {
  return fmt::format("{}/{}", kind, parameter);
}

/// As scale_of() makes them (executor/optimizers/tensor_scales.h).
bool is_power_of_two(float scale) {
  int exponent = 0;
  return std::isnormal(scale) && std::frexp(scale, &exponent) == 0.5F;
}

}  // namespace

std::string slice_name(std::string_view kind, const std::string& parameter, std::int64_t first_row) {
  return fmt::format("{}{}{}", key_of(kind, parameter), kRowMark, first_row);
}

SavedStates::SavedStates(const std::string& folder, const Manifest& manifest, const Graph& graph,
                         const std::vector<bool>& is_scaled)
    : folder_(folder) {
  for (std::size_t rank = 0; rank < manifest.files.size(); ++rank) {
    try {
      add_file(rank);
    } catch (const DamagedCheckpoint&) {
      throw;
    } catch (const ModelError& error) {
      throw DamagedCheckpoint(error.what());
    }
  }
  for (auto& [key, slices] : slices_) std::ranges::sort(slices, {}, &Slice::first_row);
  for (std::size_t i = 0; i < graph.parameters.size(); ++i) {
    check_parameter(graph.parameters[i]);
    check_scales(graph.parameters[i], i < is_scaled.size() && is_scaled[i]);
  }
}

void SavedStates::add_file(std::size_t rank) {
  const std::string path = folder_ + "/" + rank_file(rank);
  const File file(path, kCheckpointFile);
  file_bytes_.push_back(file.bytes());
  for (StoredTensor& tensor : read_header(file)) {
    const auto name = split(tensor.name);
    const auto type = stored_float(tensor.dtype);
    const bool is_bytes = tensor.dtype == "U8";
    if (!name || (!type && !is_bytes) || tensor.shape.empty()) {
      damaged(path, fmt::format("tensor {} is not a slice of a state", printable(tensor.name, 80)));
    }
    const std::int64_t rows = tensor.shape.front();
    Slice slice{name->second, rows, std::move(tensor.shape), rank, tensor.offset, type};
    const bool is_number = type == StoredFloat::f32 && slice.shape == std::vector{std::int64_t{1}};
    if (is_number && name->first.starts_with(key_of(kScaleKind, ""))) {
      file.read(slice.offset, {reinterpret_cast<char*>(&slice.scale), sizeof slice.scale});
    }
    slices_[name->first].push_back(std::move(slice));
  }
}

const File& SavedStates::open_file(std::size_t rank) {
  const std::string path = folder_ + "/" + rank_file(rank);
  if (open_ && open_->path() == path) return *open_;
  File file(path, kCheckpointFile);
  if (file.bytes() != file_bytes_[rank]) {
    damaged(path, fmt::format("{} bytes, it had {} when the run began: it changed while in use; start again when "
                              "nothing writes to it",
                              file.bytes(), file_bytes_[rank]));
  }
  return open_.emplace(std::move(file));
}

void SavedStates::check_parameter(const Parameter& parameter) const {
  const auto codes = slices_.find(key_of(kCodesKind, parameter.name));
  const auto found = slices_.find(key_of(kParameterKind, parameter.name));
  if (codes != slices_.end()) {
    if (found != slices_.end()) damaged(folder_, fmt::format("{}: both quantized and not", parameter.name));
    check_codes(parameter, codes->second);
    return;
  }
  std::int64_t next = 0;
  if (found != slices_.end()) {
    for (const Slice& slice : found->second) {
      std::vector<std::int64_t> shape = slice.shape;
      shape.front() = parameter.shape.front();
      if (shape != parameter.shape || slice.first_row != next) {
        damaged(folder_, fmt::format("{}: slices don't fit together", parameter.name));
      }
      next = checked_add(next, slice.rows);
    }
  }
  if (next != parameter.shape.front()) {
    damaged(folder_, fmt::format("{}: rows {} to {} are missing", parameter.name, next, parameter.shape.front()));
  }
}

/// Numbers of the wrong size are no less plausible: a scale that is lost, or one too many, would be found by nothing
/// else.
void SavedStates::check_scales(const Parameter& parameter, bool is_scaled) const {
  const auto scales = slices_.find(key_of(kScaleKind, parameter.name));
  if (!is_scaled) {
    if (scales != slices_.end()) damaged(folder_, fmt::format("{}: has a scale, but no master", parameter.name));
    return;
  }
  const auto found = slices_.find(key_of(kParameterKind, parameter.name));
  const std::vector<Slice> none;
  const std::vector<Slice>& all = scales == slices_.end() ? none : scales->second;
  const std::vector<Slice>& slices = found == slices_.end() ? none : found->second;
  for (std::size_t i = 0; i < std::max(all.size(), slices.size()); ++i) {
    const bool is_one = i < all.size() && i < slices.size() && slices[i].type == StoredFloat::f16 &&
                        all[i].first_row == slices[i].first_row && is_power_of_two(all[i].scale);
    if (is_one) continue;
    damaged(folder_, fmt::format("{}: rows from {} on are no fp16 numbers with a scale", parameter.name,
                                 i < slices.size() ? slices[i].first_row : all[i].first_row));
  }
}

/// How many bytes a slice's rows have is known when they are read.
void SavedStates::check_codes(const Parameter& parameter, const std::vector<Slice>& slices) const {
  std::int64_t least = 0;
  for (const Slice& slice : slices) {
    if (slice.type || slice.shape.size() != 1) {
      damaged(folder_, fmt::format("{}: codes are not a list of bytes", parameter.name));
    }
    const bool is_first = least == 0;
    if (slice.first_row < least || (is_first && slice.first_row > 0) || slice.first_row >= parameter.shape.front()) {
      damaged(folder_, fmt::format("{}: slices of codes don't fit together", parameter.name));
    }
    least = slice.first_row + 1;
  }
}

void SavedStates::read_rows(const Parameter& parameter, std::int64_t first_row, std::int64_t rows, at::Tensor& into) {
  read_state(kParameterKind, parameter, first_row, rows, into);
  multiply_by_scales(parameter, first_row, rows, into);
}

/// Slice by slice, as each has the scale of the rank that saved it.
void SavedStates::multiply_by_scales(const Parameter& parameter, std::int64_t first_row, std::int64_t rows,
                                     at::Tensor& into) const {
  const auto scales = slices_.find(key_of(kScaleKind, parameter.name));
  if (scales == slices_.end()) return;
  const std::int64_t each = row_element_count(parameter);
  const std::vector<Slice>& slices = slices_.find(key_of(kParameterKind, parameter.name))->second;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const std::int64_t begin = std::max(slices[i].first_row, first_row),
                       end = std::min(slices[i].first_row + slices[i].rows, first_row + rows);
    if (begin >= end) continue;
    const float factor = scales->second[i].scale;
    const std::span<char> place =
        stored_place(into, (begin - first_row) * each, StoredFloat::f32, (end - begin) * each);
    if (place.empty()) throw std::logic_error("numbers that have a scale are read in fp32, on the host");
    for (float& number : std::span(reinterpret_cast<float*>(place.data()), place.size() / sizeof(float))) {
      number *= factor;
    }
  }
}

void SavedStates::read_state(std::string_view kind, const Parameter& parameter, std::int64_t first_row,
                             std::int64_t rows, at::Tensor& into) {
  read_numbers(kind, parameter, {first_row, rows, row_element_count(parameter)}, into);
}

void SavedStates::read_blocks(std::string_view kind, const Parameter& parameter, std::int64_t first_row,
                              std::int64_t rows, at::Tensor& into) {
  constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;
  const auto found = slices_.find(key_of(kind, parameter.name));
  if (found == slices_.end()) damaged(folder_, fmt::format("{} of {} is missing", kind, parameter.name));
  const std::vector<Slice>& slices = found->second;
  const auto saved = std::ranges::find(slices, first_row, &Slice::first_row);
  const bool is_last = saved == slices.end() || saved + 1 == slices.end();
  const std::int64_t end = is_last ? parameter.shape.front() : (saved + 1)->first_row;
  if (saved == slices.end() || end != first_row + rows) {
    throw InputError(
        fmt::format("--resume: {} of {} is in blocks of the rows that a rank had; resume with parameters sharded over "
                    "as many ranks as in the run that saved",
                    kind, parameter.name));
  }
  std::int64_t numbers = 1;
  for (const std::int64_t dim : saved->shape) numbers = checked_mul(numbers, dim);
  const auto [elements, width] = size_of(into);
  if (numbers != elements) {
    damaged(folder_, fmt::format("{} of {}: {} numbers, {} are needed", kind, parameter.name, numbers, elements));
  }
  if (!has_type(into, saved->type)) {
    damaged(folder_, fmt::format("{} of {}: numbers of another type than are needed", kind, parameter.name));
  }
  const std::int64_t most = kPieceBytes / width;
  std::vector<char> piece(static_cast<std::size_t>(std::min(numbers, most) * width));
  for (std::int64_t done = 0; done < numbers; done += most) {
    const std::int64_t count = std::min(most, numbers - done);
    const std::span<char> bytes = std::span(piece).first(static_cast<std::size_t>(count * width));
    open_file(saved->file).read(saved->offset + done * width, bytes);
    write_bytes(into, done, bytes);
  }
}

void SavedStates::read_numbers(std::string_view kind, const Parameter& parameter, const StateRows& rows,
                               at::Tensor& into) {
  const std::int64_t end = rows.first + rows.count;
  std::int64_t next = rows.first;
  const auto found = slices_.find(key_of(kind, parameter.name));
  const std::vector<Slice> none;
  for (const Slice& slice : found == slices_.end() ? none : found->second) {
    std::int64_t elements = 1;
    for (std::size_t dim = 1; dim < slice.shape.size(); ++dim) elements = checked_mul(elements, slice.shape[dim]);
    const std::int64_t to = std::min(end, checked_add(slice.first_row, slice.rows));
    if (slice.first_row > next || to <= next || elements != rows.each || !slice.type) continue;
    const std::int64_t row_bytes = rows.each * stored_bytes(*slice.type);
    const std::int64_t offset = slice.offset + (next - slice.first_row) * row_bytes;
    vramfit::read_numbers(open_file(slice.file),
                          {.type = *slice.type, .begin = offset, .count = (to - next) * rows.each}, into,
                          (next - rows.first) * rows.each);
    next = to;
  }
  if (next < end) damaged(folder_, fmt::format("{} of {}: rows {} to {} are missing", kind, parameter.name, next, end));
}

}  // namespace vramfit
