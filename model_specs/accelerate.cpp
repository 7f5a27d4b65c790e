#include "model_specs/accelerate.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <numeric>
#include <unordered_map>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/characters.h"
#include "model_specs/families/families.h"
#include "model_specs/parameters.h"

namespace vramfit {
namespace {

bool is_number(std::string_view part) { return !part.empty() && std::all_of(part.begin(), part.end(), is_digit); }

// The layer that holds a tensor: a family's unsplit module, the path up to the first number, or the tensor's module.
std::string_view layer_of(std::string_view tensor, const Family& family) {
  for (const std::string_view module : family.unsplit_modules) {
    if (tensor.substr(0, module.size()) == module && tensor.substr(module.size(), 1) == ".") return module;
  }
  for (std::size_t begin = 0; begin < tensor.size();) {
    const std::size_t end = std::min(tensor.find('.', begin), tensor.size());
    if (is_number(tensor.substr(begin, end - begin))) return tensor.substr(0, end);
    begin = end + 1;
  }
  return tensor.substr(0, tensor.rfind('.'));
}

std::int64_t tensor_bytes(const std::vector<std::int64_t>& shape, Dtype dtype) {
  std::int64_t bytes = dtype_bytes(dtype).n;
  for (const std::int64_t dim : shape) bytes = checked_mul(bytes, dim);
  return bytes;
}

// By what accelerate divides an fp32 size, and how many times the fp32 size training takes (0: not estimated).
struct DtypeRow {
  std::string_view name;
  int divisor, training;
};
constexpr std::array kDtypes{DtypeRow{"float32", 1, 4}, DtypeRow{"float16", 2, 2}, DtypeRow{"int8", 4, 0},
                             DtypeRow{"int4", 8, 0}};

std::string repeat(std::string_view text, std::size_t count) {
  std::string out;
  for (std::size_t i = 0; i < count; ++i) out += text;
  return out;
}

// Python's str.center, where the odd space goes left in a field of odd width.
std::string centered(const std::string& text, std::size_t width) {
  if (text.size() >= width) return text;
  const std::size_t spare = width - text.size();
  const std::size_t left = spare / 2 + (spare & width & 1U);
  return std::string(left, ' ') + text + std::string(spare - left, ' ');
}

using Cells = std::vector<std::string>;

std::string rule(std::string_view left, std::string_view middle, std::string_view right,
                 const std::vector<std::size_t>& widths) {
  std::string line(left);
  for (std::size_t i = 0; i < widths.size(); ++i) {
    if (i > 0) line += middle;
    line += repeat("─", widths[i]);
  }
  return line + std::string(right);
}

std::string line_of(const Cells& cells, const std::vector<std::size_t>& widths) {
  std::string line = "│";
  for (std::size_t i = 0; i < cells.size(); ++i) line += centered(cells[i], widths[i]) + "│";
  return line;
}

// accelerate's create_ascii_table: a title too long for the columns widens the last one by twice what is missing.
std::string table(const std::string& title, const Cells& headers, const std::vector<Cells>& rows) {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < headers.size(); ++i) {
    std::size_t width = headers[i].size();
    for (const Cells& row : rows) width = std::max(width, row[i].size());
    widths.push_back(width);
  }
  const auto inner = [&] { return std::accumulate(widths.begin(), widths.end(), widths.size() - 1); };
  const std::size_t outer = inner() + 2;
  if (title.size() > inner() - (widths.size() - 1)) {
    widths.back() += 2 * (std::max(title.size(), outer) - std::min(title.size(), outer));
  }
  std::string text = rule("┌", "─", "┐", widths) + "\n│" + centered(title, inner()) + "│\n";
  text += rule("├", "┬", "┤", widths) + "\n" + line_of(headers, widths) + "\n" + rule("├", "┼", "┤", widths) + "\n";
  for (const Cells& row : rows) text += line_of(row, widths) + "\n";
  return text + rule("└", "┴", "┘", widths) + "\n";
}

}  // namespace

AccelerateSizes accelerate_sizes(const ModelSpec& spec) try {
  const ModelSpec base = without_head(spec);
  const Family& family = find_family(spec.model_type);
  std::unordered_map<std::string, std::int64_t> layers;
  std::int64_t total = 0;
  const auto count = [&](const std::string& name, std::int64_t bytes) {
    total = checked_add(total, bytes);
    layers[std::string(layer_of(name, family))] += bytes;
  };
  for (const NamedShape& tensor : parameters(base)) count(tensor.name, tensor_bytes(tensor.shape, Dtype::f32));
  for (const NamedBuffer& buffer : buffers(base)) count(buffer.name, tensor_bytes(buffer.shape, buffer.dtype));
  std::int64_t largest = 0;
  for (const auto& layer : layers) largest = std::max(largest, layer.second);
  return {Bytes{total}, Bytes{largest}};
} catch (const InputError&) {
  throw ModelError(spec.source + ": the size of the model overflows 64 bits; its sizes can't be right");
}

std::string accelerate_bytes(double bytes) {
  constexpr std::array kUnits{"bytes", "KB", "MB", "GB", "TB", "PB"};
  const bool whole = bytes == static_cast<double>(static_cast<std::int64_t>(bytes));
  if (bytes < 1024.0 && whole) return fmt::format("{:.0f} bytes", bytes);
  std::size_t unit = 0;
  while (bytes >= 1024.0 && unit + 1 < kUnits.size()) {
    bytes /= 1024.0;
    ++unit;
  }
  std::string number = fmt::format("{:.2f}", bytes);
  if (number.back() == '0') number.pop_back();
  return fmt::format("{} {}", number, kUnits[unit]);
}

std::vector<AccelerateMemoryRow> accelerate_memory_rows(const AccelerateSizes& sizes) {
  std::vector<AccelerateMemoryRow> rows;
  rows.reserve(kDtypes.size());
  const auto total = static_cast<double>(sizes.total.n), largest = static_cast<double>(sizes.largest_layer.n);
  for (const DtypeRow& row : kDtypes) {
    rows.push_back({.dtype = std::string(row.name),
                    .largest_layer = accelerate_bytes(largest / row.divisor),
                    .total_size = accelerate_bytes(total / row.divisor),
                    .training = row.training == 0 ? "N/A" : accelerate_bytes(total * row.training)});
  }
  return rows;
}

std::vector<AccelerateTrainingRow> accelerate_training_rows(const AccelerateSizes& sizes) {
  const std::int64_t whole_half = sizes.total.n / 2;
  const auto model = static_cast<double>(sizes.total.n), half = static_cast<double>(whole_half);
  const auto row = [&](const char* dtype, double gradients, double step) {
    return AccelerateTrainingRow{.dtype = dtype,
                                 .model = accelerate_bytes(model),
                                 .gradients = accelerate_bytes(gradients),
                                 .backward = accelerate_bytes(2 * model),
                                 .step = accelerate_bytes(step)};
  };
  return {row("float32", model, 4 * model), row("float16", model + half, 2 * model)};
}

std::string accelerate_text(const ModelSpec& spec, std::string_view model) {
  const AccelerateSizes sizes = accelerate_sizes(spec);
  std::vector<Cells> memory, training;
  for (const AccelerateMemoryRow& row : accelerate_memory_rows(sizes)) {
    memory.push_back({row.dtype, row.largest_layer, row.total_size, row.training});
  }
  for (const AccelerateTrainingRow& row : accelerate_training_rows(sizes)) {
    training.push_back({row.dtype, row.model, row.gradients, row.backward, row.step});
  }
  return table(fmt::format("Memory Usage for loading `{}`", model),
               {"dtype", "Largest Layer", "Total Size", "Training using Adam"}, memory) +
         table("Training using Adam, by stage", {"dtype", "Model", "Gradients", "Backward", "Step"}, training);
}

}  // namespace vramfit
