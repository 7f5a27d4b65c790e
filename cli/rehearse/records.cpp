#include "cli/rehearse/records.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json_value.h"
#include "base/suggest.h"
#include "cli/files.h"

namespace vramfit {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr int kMostCards = 1 << 20;
constexpr std::int64_t kMostRanks = std::int64_t{1} << 40;

// Any process can write what it likes into the folder, so each number is checked.
std::int64_t count(JsonObject& object, std::string_view key) { return object.integer(key, 0, kMost); }
Bytes bytes(JsonObject& object, std::string_view key) { return {count(object, key)}; }
int card_number(JsonObject& object, std::string_view key) {
  return static_cast<int>(object.integer(key, 0, kMostCards));
}

std::vector<std::string> texts_if_any(JsonObject& object, std::string_view key) {
  return object.has(key) ? object.texts(key) : std::vector<std::string>{};
}

CountedReads read_reads(JsonObject object) {
  return {.count = count(object, "count"), .bytes = bytes(object, "bytes"), .places = texts_if_any(object, "places")};
}

std::vector<AssumedRead> read_assumed(JsonObject& object) {
  std::vector<AssumedRead> reads;
  if (!object.has("assumed_reads")) return reads;
  for (JsonObject& read : object.objects("assumed_reads")) {
    reads.push_back({.what = read.text("what"),
                     .steers = read.boolean("steers"),
                     .assumptions = read.integer("assumptions", -1, kMost),
                     .count = count(read, "count"),
                     .bytes = bytes(read, "bytes")});
  }
  return reads;
}

DriverCard read_card(JsonObject& object) {
  DriverCard card;
  card.card = card_number(object, "card");
  card.peak_used = bytes(object, "peak_used_bytes");
  card.outside = bytes(object, "outside_bytes");
  card.allocations = count(object, "allocations");
  for (JsonObject& failure : object.objects("out_of_memory")) {
    card.failures.emplace_back(bytes(failure, "asked_bytes"), Bytes{failure.integer("free_bytes", -kMost, kMost)});
  }
  card.out_of_memory = object.has("out_of_memory_count") ? count(object, "out_of_memory_count")
                                                         : static_cast<std::int64_t>(card.failures.size());
  return card;
}

std::vector<std::pair<std::string, std::int64_t>> read_unsupported(const JsonValue& document) {
  std::vector<std::pair<std::string, std::int64_t>> calls;
  const auto found = std::ranges::find(document.keys, "unsupported");
  if (found == document.keys.end()) return calls;
  const JsonValue& map = document.items[static_cast<std::size_t>(found - document.keys.begin())];
  for (std::size_t i = 0; i < map.keys.size(); ++i) calls.emplace_back(map.keys[i], map.items[i].integer);
  return calls;
}

ProcessRecord read_process(const std::string& path) {
  const JsonValue document = parse_json(read_file(path), path);
  JsonObject object(document, path);
  ProcessRecord record;
  record.process = count(object, "pid");
  if (object.has("rank")) record.rank = object.integer("rank", 0, kMostRanks);
  record.command = object.texts("command");
  record.ended = object.boolean("ended");
  for (JsonObject& card : object.objects("cards")) record.cards.push_back(read_card(card));
  record.uncertain = read_reads(object.object("uncertain_reads"));
  record.invented = read_reads(object.object("invented_reads"));
  record.assumed = read_assumed(object);
  record.ghost_answers = count(object, "ghost_answers");
  record.ghost_places = texts_if_any(object, "ghost_places");
  record.escapes = texts_if_any(object, "escapes");
  record.unsupported = read_unsupported(document);
  return record;
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

TorchOutOfMemory read_out_of_memory(JsonObject& object) {
  TorchOutOfMemory event;
  event.device = card_number(object, "device");
  event.phase = object.text("phase");
  event.step = count(object, "step");
  event.asked = bytes(object, "asked_bytes");
  event.free = bytes(object, "free_bytes");
  if (object.has("allocated_bytes")) event.allocated = bytes(object, "allocated_bytes");
  if (object.has("reserved_bytes")) event.reserved = bytes(object, "reserved_bytes");
  for (JsonObject& kind : object.objects("live")) event.live.emplace_back(kind.text("what"), bytes(kind, "bytes"));
  if (!object.has("largest")) return event;
  for (JsonObject& size : object.objects("largest")) {
    event.block_sizes.emplace_back(bytes(size, "bytes"), count(size, "count"));
  }
  return event;
}

TorchRecord read_torch(const std::string& path, std::int64_t& process) {
  const JsonValue document = parse_json(read_file(path), path);
  JsonObject object(document, path);
  TorchRecord record;
  record.ended = object.text("ended");
  record.version = object.text("torch");
  process = count(object, "pid");
  record.exception = object.text("exception");
  record.steps = count(object, "steps");
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
    if (!name.ends_with(".json")) continue;
    try {
      std::int64_t process = 0;
      if (name.starts_with("process.")) {
        ProcessRecord record = read_process(entry.path().string());
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
