#include "cli/explain/memory_message.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/text/suggest.h"

namespace vramfit {
namespace {

constexpr std::size_t kMostProcesses = 64, kMostText = 2000;

struct Beginning {
  std::string_view words;
  RefusedBy by;
};

// torch 2.0 to 2.15: c10/cuda/CUDACachingAllocator.cpp, CUDAMallocAsyncAllocator.cpp; then what CUDA, cuBLAS, cuDNN and
// NCCL report past the allocator.
constexpr std::array kBeginnings{
    Beginning{"CUDA out of memory. Allocation was preemptively rejected", RefusedBy::memory_fraction},
    Beginning{"CUDA out of memory.", RefusedBy::caching_allocator},
    Beginning{"would exceed allowed memory. (out of memory)", RefusedBy::async_allocator},
    Beginning{"CUDA error: out of memory", RefusedBy::library},
    Beginning{"CUBLAS_STATUS_ALLOC_FAILED", RefusedBy::library},
    Beginning{"CUDNN_STATUS_ALLOC_FAILED", RefusedBy::library},
    Beginning{"Failed to CUDA calloc", RefusedBy::library},
    Beginning{"Cuda failure 2 'out of memory'", RefusedBy::library},
};

const Beginning* beginning_of(std::string_view text) {
  const auto* const row =
      std::ranges::find_if(kBeginnings, [&](const Beginning& each) { return text.starts_with(each.words); });
  return row == kBeginnings.end() ? nullptr : row;
}

struct Unit {
  std::string_view name;
  std::int64_t bytes;
};
constexpr std::array kUnits{Unit{"bytes", 1}, Unit{"KiB", kKiB.n}, Unit{"MiB", kMiB.n}, Unit{"GiB", kGiB.n}};

/// The size that ends right before `at`.
std::optional<Bytes> size_before(std::string_view text, std::size_t at) {
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view head = text.substr(0, at);
  const std::size_t unit = head.find_last_of(' ');
  if (unit == std::string_view::npos || unit == 0) return std::nullopt;
  const std::size_t number = head.find_last_not_of("0123456789.", unit - 1);
  return size_at(head.substr(number == std::string_view::npos ? 0 : number + 1));
}

std::optional<Bytes> size_before(std::string_view text, std::string_view words) {
  return size_before(text, text.find(words));
}

std::optional<Bytes> size_after(std::string_view text, std::string_view words) {
  const std::size_t at = text.find(words);
  return at == std::string_view::npos ? std::nullopt : size_at(text.substr(at + words.size()));
}

/// The decimal number after `words`.
template <typename Number>
std::optional<Number> number_after(std::string_view text, std::string_view words) {
  const std::size_t at = text.find(words);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = text.substr(at + words.size());
  Number value = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  return error == std::errc{} && value >= 0 ? std::optional(value) : std::nullopt;
}

/// "Process 123 has 79.14 GiB memory in use. Including non-PyTorch memory, this process has ...".
void read_processes(MemoryMessage& message, std::string_view text) {
  constexpr std::string_view kOther = "Process ", kThis = "this process has ", kHas = " has ";
  if (const auto own = size_after(text, kThis)) message.processes.push_back({.process = 0, .bytes = *own});
  for (std::size_t at = text.find(kOther); at != std::string_view::npos && message.processes.size() < kMostProcesses;
       at = text.find(kOther, at + 1)) {
    const std::string_view rest = text.substr(at);
    const auto process = number_after<std::int64_t>(rest, kOther);
    const std::size_t has = rest.substr(0, 40).find(kHas);
    if (!process || has == std::string_view::npos) continue;
    if (const auto bytes = size_at(rest.substr(has + kHas.size()))) {
      message.processes.push_back({.process = *process, .bytes = *bytes});
    }
  }
}

/// From 2.1 on: "GPU 0 has a total capacity of 23.52 GiB of which 90.48 MiB is free. ... Of the allocated memory 23.11
/// GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools (e.g., CUDA Graphs), and 26.69 MiB is reserved
/// by PyTorch but unallocated." 2.1 misspells "capacity".
void read_sentences(MemoryMessage& message, std::string_view text) {
  message.total = size_after(text, "total capacity of ");
  if (!message.total) message.total = size_after(text, "total capacty of ");
  message.free = size_after(text, "of which ");
  message.allowed = size_before(text, " allowed;");
  message.allocated = size_after(text, "Of the allocated memory ");
  message.private_pools = size_before(text, " allocated in private pools");
  const auto unallocated = size_before(text, " is reserved by PyTorch but unallocated");
  if (message.allocated && unallocated) message.reserved = *message.allocated + *unallocated;
  read_processes(message, text);
}

/// 2.0: "(GPU 0; 23.69 GiB total capacity; 22.10 GiB already allocated; 1.31 GiB free; 22.26 GiB reserved in total by
/// PyTorch)".
void read_parentheses(MemoryMessage& message, std::string_view text) {
  message.total = size_before(text, " total capacity;");
  message.allocated = size_before(text, " already allocated;");
  message.free = size_before(text, " free;");
  message.allowed = size_before(text, " allowed;");
  message.reserved = size_before(text, " reserved in total by PyTorch");
}

/// cudaMallocAsync's table: "Currently allocated     : 23.11 GiB", a figure a line.
void read_table(MemoryMessage& message, std::string_view text) {
  const auto figure = [&](std::string_view name) -> std::optional<Bytes> {
    const std::size_t at = text.find(name);
    if (at == std::string_view::npos) return std::nullopt;
    const std::size_t colon = text.find(": ", at + name.size());
    return colon == std::string_view::npos ? std::nullopt : size_at(text.substr(colon + 2));
  };
  message.allocated = figure("Currently allocated");
  message.asked = figure("Requested");
  message.total = figure("Device limit");
  message.free = figure("Free (according to CUDA)");
  message.allowed = figure("PyTorch limit");
}

}  // namespace

std::optional<Bytes> size_at(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + std::min<std::size_t>(text.size(), 40), value,
                                            std::chars_format::fixed);
  if (error != std::errc{} || end == text.data() || !std::isfinite(value) || value < 0) return std::nullopt;
  const std::string_view rest = text.substr(static_cast<std::size_t>(end - text.data()));
  if (!rest.starts_with(' ')) return std::nullopt;
  for (const Unit& unit : kUnits) {
    if (!rest.substr(1).starts_with(unit.name)) continue;
    const double bytes = value * static_cast<double>(unit.bytes);
    if (bytes > 0x1p60) return std::nullopt;
    return Bytes{std::llround(bytes)};
  }
  return std::nullopt;
}

std::size_t find_memory_message(std::string_view line) {
  for (const Beginning& beginning : kBeginnings) {
    const std::size_t at = line.find(beginning.words);
    if (at != std::string_view::npos) return at;
  }
  return std::string_view::npos;
}

bool is_whole_message(std::string_view text) {
  const Beginning* const beginning = beginning_of(text);
  if (beginning == nullptr || beginning->by == RefusedBy::library) return true;
  if (beginning->by == RefusedBy::async_allocator) {
    const std::size_t last = text.find("PyTorch limit");
    return last != std::string_view::npos && text.find(": ", last) != std::string_view::npos;
  }
  // What follows these words is advice and links.
  return text.find("reserved by PyTorch but unallocated") != std::string_view::npos ||
         text.find("reserved in total by PyTorch") != std::string_view::npos ||
         text.find("more than 1EB") != std::string_view::npos;
}

MemoryMessage read_memory_message(std::string_view text) {
  MemoryMessage message;
  if (const Beginning* const beginning = beginning_of(text)) message.by = beginning->by;
  message.text = printable(text, kMostText);
  if (message.by == RefusedBy::async_allocator) {
    read_table(message, text);
    return message;
  }
  if (message.by == RefusedBy::library) return message;
  message.gpu = number_after<int>(text, "GPU ");
  message.expandable = text.find("expandable_segments is enabled") != std::string_view::npos;
  if (text.find(" already allocated;") != std::string_view::npos) {
    read_parentheses(message, text);
    message.is_of_old_torch = true;
  } else {
    read_sentences(message, text);
  }
  message.asked = size_after(text, "Tried to allocate ");
  if (message.by == RefusedBy::memory_fraction) message.asked = size_after(text, "Requested size: ");
  return message;
}

}  // namespace vramfit
