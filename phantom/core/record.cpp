#include "phantom/core/record.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "phantom/core/record_file.h"

namespace vramfit::phantom {

namespace {

using process_record::Card;
using process_record::Text;
using process_record::TextKind;

constexpr std::size_t kMostPlaces = 32, kMostAssumed = 256, kMostUnsupported = 192;  // listed; all are counted
constexpr std::size_t kMostWorkspaces = 64;
static_assert(4 * kMostPlaces + kMostAssumed + 2 + kMostUnsupported + kMostWorkspaces <= process_record::kMostTexts);

struct State {
  std::mutex mutex;
  pid_t owner = getpid();
  RecordFile file;
};

State* current = nullptr;

void note_exit() {
  if (current != nullptr && current->owner == getpid()) put(current->file.header().ended, 1);
}

// Never destroyed: calls come until the very end. A forked child has used no card yet.
State& state() {
  static std::mutex making;
  const std::lock_guard lock(making);
  if (current == nullptr || current->owner != getpid()) {
    if (current == nullptr) std::atexit(note_exit);
    current = new State;  // NOLINT(cppcoreguidelines-owning-memory)
  }
  return *current;
}

void add(std::int64_t& field, std::int64_t value) { put(field, field + value); }

void count_text(Text* text, std::int64_t bytes) {
  if (text == nullptr) return;
  add(text->count, 1);
  add(text->bytes, bytes);
}

}  // namespace

void count_out_of_memory(int card, std::int64_t asked_bytes, std::int64_t free_bytes) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Card& record = s.file.card(card);
  const auto number = static_cast<std::size_t>(record.out_of_memory_count);
  if (number < record.failures.size()) record.failures[number] = {asked_bytes, free_bytes};
  put(record.is_last_refused, 1);
  add(record.out_of_memory_count, 1);
}

void count_uncertain_read(std::int64_t bytes, std::string_view place) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  count_text(s.file.text(TextKind::uncertain_place, false, place, kMostPlaces), bytes);
  add(s.file.header().uncertain_bytes, bytes);
  add(s.file.header().uncertain_reads, 1);
}

void count_invented_read(std::int64_t bytes, std::string_view collective) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  count_text(s.file.text(TextKind::invented_place, false, collective, kMostPlaces), bytes);
  add(s.file.header().invented_bytes, bytes);
  add(s.file.header().invented_reads, 1);
}

void count_assumed_read(std::int64_t assumptions, bool steers, std::int64_t bytes, const std::string& what) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Text* read = s.file.text(TextKind::assumed, steers, what, kMostAssumed);
  if (read == nullptr) read = s.file.text(TextKind::assumed, steers, "elsewhere", kMostAssumed + 2);
  const bool is_unknown = read->assumptions < 0 || assumptions < 0;
  put(read->assumptions, is_unknown ? -1 : read->assumptions | assumptions);
  count_text(read, bytes);
}

void count_ghost_answer(std::string_view what) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  count_text(s.file.text(TextKind::ghost_place, false, what, kMostPlaces), 0);
  add(s.file.header().ghost_answers, 1);
}

void count_unsupported(const char* function) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  count_text(s.file.text(TextKind::unsupported, false, function, kMostUnsupported), 0);
}

void count_workspace(std::string_view what, std::int64_t bound_bytes, bool is_kept) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Text* text = s.file.text(TextKind::workspace, is_kept, what, kMostWorkspaces);
  if (text == nullptr) return;
  if (bound_bytes < 0) put(text->assumptions, -1);
  const std::int64_t bound = std::max<std::int64_t>(bound_bytes, 0);
  put(text->bytes, is_kept ? text->bytes + bound : std::max(text->bytes, bound));
  add(text->count, 1);
}

void add_escape(std::string_view what) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  count_text(s.file.text(TextKind::escape, false, what, kMostPlaces), 0);
}

void count_used(int card, std::int64_t used_bytes, std::int64_t outside_bytes, bool is_allocation) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.file.look_at_rank();
  Card& record = s.file.card(card);
  put(record.used_bytes, used_bytes);
  if (used_bytes > record.peak_used_bytes) {
    put(record.outside_at_peak_bytes, outside_bytes);
    put(record.peak_used_bytes, used_bytes);
  }
  if (!is_allocation) return;
  put(record.is_last_refused, 0);
  add(record.allocations, 1);
}

void count_peaks(int card, std::int64_t requested_bytes, std::int64_t allocated_bytes) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Card& record = s.file.card(card);
  if (requested_bytes > record.peak_requested_bytes) put(record.peak_requested_bytes, requested_bytes);
  if (allocated_bytes > record.peak_allocated_bytes) put(record.peak_allocated_bytes, allocated_bytes);
}

void count_managed(int card, std::int64_t bytes) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Card& record = s.file.card(card);
  add(record.managed_bytes, bytes);
  put(record.peak_managed_bytes, std::max(record.peak_managed_bytes, record.managed_bytes));
}

}  // namespace vramfit::phantom

// The audit library finds it by its name (missing.cpp).
extern "C" PHANTOM_CORE void vramfit_phantom_missing(const char* function) {
  vramfit::phantom::count_unsupported((std::string(function) + " (newer than this vramfit)").c_str());
}
