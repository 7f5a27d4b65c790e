#include "phantom/core/record.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "phantom/core/session.h"
#include "phantom/core/visible_cards.h"

namespace vramfit::phantom {

namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostAssumed = 256;
constexpr std::size_t kKept = 32;  // out-of-memory reports and places of reads that are listed; all are counted

struct CardRecord {
  std::int64_t used_bytes = 0, peak_used_bytes = 0, outside_bytes = 0, allocations = 0, out_of_memory_count = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> out_of_memory;  // asked, free
};

struct Reads {
  std::int64_t count = 0, bytes = 0;
  std::set<std::string> places;
  void add(std::int64_t read_bytes, std::string_view place) {
    ++count;
    bytes += read_bytes;
    if (places.size() < kKept) places.emplace(place);
  }
  Json json() const { return {{"count", count}, {"bytes", bytes}, {"places", places}}; }
};

struct AssumedRead {
  std::int64_t assumptions = 0, count = 0, bytes = 0;
};

struct State {
  std::mutex mutex;
  pid_t owner = getpid();
  bool written = false;
  std::map<int, CardRecord> cards;
  Reads uncertain, invented;
  std::map<std::pair<std::string, bool>, AssumedRead> assumed;  // by what was read and whether it steers
  std::int64_t ghost_answers = 0;
  std::set<std::string> ghost_places;
  std::map<std::string, std::int64_t> unsupported;
  std::set<std::string> escapes;
};

void write_at_exit() { write_record(true); }

// Never destroyed: calls come until the very end. A forked child has used no card yet.
State& state() {
  static State* current = nullptr;
  static std::mutex making;
  const std::lock_guard lock(making);
  if (current == nullptr || current->owner != getpid()) {
    if (current == nullptr) std::atexit(write_at_exit);
    current = new State;  // NOLINT(cppcoreguidelines-owning-memory)
  }
  return *current;
}

Json rank_of_process() {
  const char* rank = std::getenv("RANK");
  if (rank == nullptr || *rank == '\0' || std::string(rank).find_first_not_of("0123456789") != std::string::npos) {
    return nullptr;
  }
  return std::atoll(rank);
}

std::vector<std::string> command_line() {
  std::ifstream file("/proc/self/cmdline");
  std::vector<std::string> words;
  std::string word;
  while (words.size() < 64 && std::getline(file, word, '\0')) words.push_back(word.substr(0, 256));
  return words;
}

Json card_json(int card, const CardRecord& record) {
  Json misses = Json::array();
  for (const auto& [asked, left] : record.out_of_memory)
    misses.push_back({{"asked_bytes", asked}, {"free_bytes", left}});
  return {{"card", place_of_card(card)},
          {"used_bytes", record.used_bytes},
          {"peak_used_bytes", record.peak_used_bytes},
          {"outside_bytes", record.outside_bytes},
          {"allocations", record.allocations},
          {"out_of_memory_count", record.out_of_memory_count},
          {"out_of_memory", std::move(misses)}};
}

Json assumed_json(const State& s) {
  Json list = Json::array();
  for (const auto& [what, read] : s.assumed) {
    list.push_back({{"what", what.first},
                    {"steers", what.second},
                    {"assumptions", read.assumptions},
                    {"count", read.count},
                    {"bytes", read.bytes}});
  }
  return list;
}

void write(const State& s, bool ended) {
  Json cards = Json::array();
  for (const auto& [card, record] : s.cards) cards.push_back(card_json(card, record));
  const Json json = {{"schema", "vramfit/phantom-process@1"},
                     {"pid", getpid()},
                     {"rank", rank_of_process()},
                     {"command", command_line()},
                     {"ended", ended},
                     {"cards", std::move(cards)},
                     {"uncertain_reads", s.uncertain.json()},
                     {"invented_reads", s.invented.json()},
                     {"assumed_reads", assumed_json(s)},
                     {"ghost_answers", s.ghost_answers},
                     {"ghost_places", s.ghost_places},
                     {"unsupported", s.unsupported},
                     {"escapes", s.escapes}};
  const std::string path = session().folder + "/process." + std::to_string(getpid()) + ".json";
  std::ofstream(path + ".partial") << json.dump(1, ' ', false, Json::error_handler_t::replace) << '\n';
  std::rename((path + ".partial").c_str(), path.c_str());
}

}  // namespace

void write_record(bool ended) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.written || !ended) write(s, ended);
  s.written = true;
}

void count_out_of_memory(int card, std::int64_t asked_bytes, std::int64_t free_bytes) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  CardRecord& record = s.cards[card];
  ++record.out_of_memory_count;
  if (record.out_of_memory.size() >= kKept) return;
  record.out_of_memory.emplace_back(asked_bytes, free_bytes);
  write(s, false);
  s.written = true;
}

void count_uncertain_read(std::int64_t bytes, std::string_view place) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.uncertain.add(bytes, place);
}

void count_invented_read(std::int64_t bytes, std::string_view collective) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.invented.add(bytes, collective);
}

void count_assumed_read(std::int64_t assumptions, bool steers, std::int64_t bytes, const std::string& what) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const bool is_full = s.assumed.size() >= kMostAssumed && !s.assumed.contains({what, steers});
  AssumedRead& read = s.assumed[{is_full ? "elsewhere" : what, steers}];
  const bool is_unknown = read.assumptions < 0 || assumptions < 0;
  read.assumptions = is_unknown ? -1 : read.assumptions | assumptions;
  ++read.count;
  read.bytes += bytes;
}

void count_ghost_answer(std::string_view what) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  ++s.ghost_answers;
  if (s.ghost_places.size() < kKept) s.ghost_places.emplace(what);
}

void count_unsupported(const char* function) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  ++s.unsupported[function];
}

void add_escape(std::string_view what) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.escapes.emplace(what);
  write(s, false);
  s.written = true;
}

void count_used(int card, std::int64_t used_bytes, std::int64_t outside_bytes, bool is_allocation) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  CardRecord& record = s.cards[card];
  record.used_bytes = used_bytes;
  record.peak_used_bytes = std::max(record.peak_used_bytes, used_bytes);
  record.outside_bytes = outside_bytes;
  record.allocations += is_allocation ? 1 : 0;
  if (s.written) return;
  write(s, false);
  s.written = true;
}

}  // namespace vramfit::phantom
