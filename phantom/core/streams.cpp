#include "phantom/core/streams.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "phantom/core/pending.h"
#include "phantom/core/session.h"
#include "phantom/core/watchdog.h"

namespace vramfit::phantom {

namespace {

constexpr std::uint64_t kLatest = 64;  // calls that a late event waits at most

struct State {
  std::mutex mutex;
  std::unordered_set<const void*> streams, events;
  std::map<int, Stream*> default_streams;             // by card
  std::map<const Stream*, std::uint64_t> last_ready;  // events of a stream complete in order
  std::atomic<std::uint64_t> next_id{16};             // above the special handles
  std::atomic<std::uint64_t> calls{1};                // the clock
  std::uint64_t draws = 0;
};

// Never destroyed: programs use streams in their own destructors.
State& state() {
  static State* const kState = new State;  // NOLINT(cppcoreguidelines-owning-memory)
  return *kState;
}

std::uint64_t mixed(std::uint64_t z) {  // SplitMix64's finalizer
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31U);
}

Stream* default_stream(State& s, int card) {
  Stream*& stream = s.default_streams[card];
  if (stream == nullptr) {
    stream = new Stream{.id = 0, .card = card};  // NOLINT: lives as long as the process
    s.streams.insert(stream);
  }
  return stream;
}

}  // namespace

Stream* create_stream(int card, unsigned flags, int priority) {
  State& s = state();
  auto stream = std::make_unique<Stream>(Stream{.id = s.next_id++, .card = card, .flags = flags, .priority = priority});
  const std::lock_guard lock(s.mutex);
  s.streams.insert(stream.get());
  return stream.release();
}

Status destroy_stream(Stream* stream) {
  pending_gone(stream);
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.streams.erase(stream) == 0) return Status::invalid_handle;
  s.last_ready.erase(stream);
  const std::unique_ptr<Stream> owner(stream);
  return Status::success;
}

Stream* stream_of(void* handle, int current_card) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (reinterpret_cast<std::uintptr_t>(handle) <= 2) return default_stream(s, current_card);
  return s.streams.contains(handle) ? static_cast<Stream*>(handle) : nullptr;
}

Event* create_event(int card, unsigned flags) {
  auto event = std::make_unique<Event>(Event{.card = card, .flags = flags});
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.events.insert(event.get());
  return event.release();
}

Status destroy_event(Event* event) {
  pending_gone(event);
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.events.erase(event) == 0) return Status::invalid_handle;
  const std::unique_ptr<Event> owner(event);
  return Status::success;
}

Status record_event(Event* event, Stream* stream) {
  if (event == nullptr || stream == nullptr) return Status::invalid_handle;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (!s.events.contains(event)) return Status::invalid_handle;
  event->recorded = true;
  event->period = current_period();
  pending_recorded(event, stream);
  event->ready_at = 0;
  const Settings& settings = session().settings;
  if (settings.late_completion) {
    const std::uint64_t delay = 1 + mixed(settings.completion_seed * 0x9E3779B97F4A7C15ULL + ++s.draws) % kLatest;
    std::uint64_t& last = s.last_ready[stream];
    last = std::max(last, s.calls.load() + delay);
    event->ready_at = last;
  }
  return Status::success;
}

// Asking is a call too, so a loop that asks until an event is complete ends.
Status query_event(const Event* event) {
  const Status arrived = settle_what_came(event);
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (!s.events.contains(event)) return Status::invalid_handle;
  if (is_held_back(*event)) return Status::not_ready;
  return ++s.calls >= event->ready_at ? arrived : Status::not_ready;
}

Status synchronize_event(const Event* event) {
  const Status arrived = settle_waits(event);
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (!s.events.contains(event)) return Status::invalid_handle;
  s.calls = std::max(s.calls.load(), event->ready_at);
  return arrived;
}

Status query_stream(const Stream* stream) {
  const Status arrived = settle_what_came(stream);
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto last = s.last_ready.find(stream);
  return last == s.last_ready.end() || ++s.calls >= last->second ? arrived : Status::not_ready;
}

Status synchronize_stream(const Stream* stream) {
  const Status arrived = settle_waits(stream);
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto last = s.last_ready.find(stream);
  if (last != s.last_ready.end()) s.calls = std::max(s.calls.load(), last->second);
  return arrived;
}

Status synchronize_card(int card) {
  const Status arrived = settle_card(card);
  State& s = state();
  const std::lock_guard lock(s.mutex);
  for (const auto& [stream, ready] : s.last_ready) {
    if (stream->card == card) s.calls = std::max(s.calls.load(), ready);
  }
  return arrived;
}

void advance() { ++state().calls; }

}  // namespace vramfit::phantom
