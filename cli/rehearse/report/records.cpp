#include "cli/rehearse/report/records.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json/json_value.h"
#include "base/text/suggest.h"
#include "cli/files.h"
#include "cli/rehearse/report/driver_record.h"

namespace vramfit {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr int kMostCards = 1 << 20;

// Any process can write what it likes into the folder, so each number is checked.
std::int64_t count(JsonObject& object, std::string_view key) { return object.integer(key, 0, kMost); }
Bytes bytes(JsonObject& object, std::string_view key) { return {count(object, key)}; }
int card_number(JsonObject& object, std::string_view key) {
  return static_cast<int>(object.integer(key, 0, kMostCards));
}

TorchDevice read_device(JsonObject& object) {
  TorchDevice device;
  device.device = card_number(object, "device");
  device.requested = bytes(object, "peak_requested_bytes");
  device.allocated = bytes(object, "peak_allocated_bytes");
  device.reserved = bytes(object, "peak_reserved_bytes");
  device.retries = count(object, "alloc_retries");
  device.out_of_memory = count(object, "out_of_memory_count");
  for (JsonObject& phase : object.objects("phases")) {
    device.phases.push_back({phase.text("phase"), phase.text("step"), bytes(phase, "peak_requested_bytes"),
                             bytes(phase, "peak_allocated_bytes"), bytes(phase, "peak_reserved_bytes")});
  }
  return device;
}

/// The first sizes; a tensor has no more dimensions than that.
std::vector<std::int64_t> read_sizes(JsonObject& object, std::string_view key) {
  constexpr std::size_t kMostSizes = 64;
  std::vector<std::int64_t> sizes;
  if (object.has(key)) sizes = object.integers(key, 0, kMost);
  sizes.resize(std::min(sizes.size(), kMostSizes));
  return sizes;
}

TorchOutOfMemory read_out_of_memory(JsonObject& object) {
  TorchOutOfMemory event;
  event.device = card_number(object, "device");
  event.phase = object.text("phase");
  event.step = count(object, "step");
  event.asked = bytes(object, "asked_bytes");
  event.free = bytes(object, "free_bytes");
  event.inputs = read_sizes(object, "inputs");
  if (object.has("allocated_bytes")) event.allocated = bytes(object, "allocated_bytes");
  if (object.has("reserved_bytes")) event.reserved = bytes(object, "reserved_bytes");
  for (JsonObject& kind : object.objects("live")) event.live.emplace_back(kind.text("what"), bytes(kind, "bytes"));
  if (!object.has("largest")) return event;
  for (JsonObject& size : object.objects("largest")) {
    event.block_sizes.emplace_back(bytes(size, "bytes"), count(size, "count"));
  }
  return event;
}

/// python.PID.record holds two documents, each a line of JSON at a fixed place; the first byte says which one is
/// complete. A process that is killed while it writes the other leaves this one.
std::string current_document(const std::string& path) {
  constexpr std::size_t kBegin = 64, kDocumentBytes = 256 << 10;  // as record.py has them
  const std::string text = read_file(path);
  if (text.empty() || (text[0] != '0' && text[0] != '1')) throw InputError(printable(path) + ": no document in it");
  const std::size_t at = kBegin + (text[0] == '1' ? kDocumentBytes : 0);
  if (at >= text.size()) throw InputError(printable(path) + ": ends before its document");
  return text.substr(at, text.find('\n', at) - at);
}

TorchRecord read_torch(const std::string& path, std::int64_t& process) {
  const JsonValue document = parse_json(current_document(path), path);
  JsonObject object(document, path);
  TorchRecord record;
  record.ended = object.text("ended");
  record.version = object.text("torch");
  process = count(object, "pid");
  record.exception = object.text("exception");
  record.steps = count(object, "steps");
  if (object.has("steps_since_out_of_memory")) {
    record.steps_since_out_of_memory = count(object, "steps_since_out_of_memory");
  }
  record.inputs = read_sizes(object, "inputs");
  record.pinned = bytes(object, "pinned_peak_bytes");
  for (JsonObject& device : object.objects("devices")) record.devices.push_back(read_device(device));
  for (JsonObject& event : object.objects("out_of_memory")) record.out_of_memory.push_back(read_out_of_memory(event));
  record.notes = object.texts("notes");
  return record;
}

}  // namespace

std::vector<ProcessRecord> read_records(const std::string& folder, std::vector<std::string>& notes) {
  std::map<std::int64_t, ProcessRecord> records;
  std::map<std::int64_t, TorchRecord> torch;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".record")) continue;
    try {
      std::int64_t process = 0;
      if (name.starts_with("process.")) {
        ProcessRecord record = read_driver_record(entry.path().string());
        process = record.process;
        records[process] = std::move(record);
      } else if (name.starts_with("python.")) {
        TorchRecord record = read_torch(entry.path().string(), process);
        torch[process] = std::move(record);
      }
    } catch (const Error& problem) {
      notes.push_back(fmt::format("a record can't be read: {}", problem.what()));
    }
  }
  for (auto& [process, record] : torch) {
    records[process].process = process;
    records[process].torch = std::move(record);
  }
  std::vector<ProcessRecord> list;
  list.reserve(records.size());
  for (auto& [process, record] : records) list.push_back(std::move(record));
  std::ranges::stable_sort(list, {}, [](const ProcessRecord& record) { return record.rank.value_or(kMost); });
  return list;
}

}  // namespace vramfit
