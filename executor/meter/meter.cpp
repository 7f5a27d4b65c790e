#include "executor/meter/meter.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "executor/meter/arena.h"

namespace vramfit {

namespace {

constexpr const char* kUnlabelled = "unlabelled";
constexpr std::size_t kAlignment = 64;  // what LibTorch's own CPU allocator gives

thread_local Category scope_category = Category::temporaries;
thread_local std::string scope_label;  // "" outside any LabelScope
thread_local ExpectedScope* expected_scope = nullptr;

struct Block {
  Bytes bytes;
  Category category{};
  std::int64_t event = -1;  // id in the ledger, -1 when events weren't recorded
  bool in_arena = false;
};

std::uint64_t number_of(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

ExpectedAllocation name_of(Bytes bytes) {
  if (!scope_label.empty()) {
    if (expected_scope != nullptr) expected_scope->strike(scope_label);
    return {bytes, scope_category, scope_label};
  }
  if (expected_scope != nullptr) return expected_scope->take(bytes);
  return {bytes, Category::temporaries, kUnlabelled};
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
    const Bytes asked{static_cast<std::int64_t>(bytes)};
    Meter::instance().check_budget(asked);
    if (void* place = Arenas::take(asked); place != nullptr) {
      Meter::instance().allocated(place, asked);
      return {place, place, &release, c10::Device(c10::DeviceType::CPU)};
    }
    void* block = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (block == nullptr) {
      throw OutOfMemory(fmt::format("out of memory: the machine could not allocate {}", format_size(asked)));
    }
    Meter::instance().allocated(block, asked);
    return {block, block, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  static void release(void* block) {
    if (block == nullptr) return;
    Meter::instance().freed(block);
    if (!Arenas::give_back(block)) std::free(block);
  }
};

}  // namespace

struct Meter::State {
  std::mutex mutex;
  bool cpu_installed = false, recording = false;
  Bytes budget, live, peak;
  Bytes beside_arenas, peak_beside_arenas;
  std::array<Bytes, kCategories> by_category{}, at_peak{};
  std::unordered_map<const void*, Block> blocks;
  std::vector<MeasuredPhase> phases;
  std::size_t phase = 0;
  std::function<DevicePeaks()> take_device_peaks;
  LedgerWriter writer, host_writer;
  std::unordered_map<const void*, Block> host_blocks;
  Bytes host_live, host_peak;
  std::optional<MemoryHistory> history;

  bool is_in(Phase phase_wanted, int step) {
    const std::scoped_lock lock(mutex);
    return !phases.empty() && phases[phase].phase == phase_wanted && phases[phase].step == step;
  }

  /// Empty before the first phase, when there is no allocator.
  std::function<DevicePeaks()> peaks_of_device() {
    const std::scoped_lock lock(mutex);
    return phases.empty() ? nullptr : take_device_peaks;
  }

  /// Searched from the end: a long run has thousands of phases, and the current step's are the last ones.
  std::size_t index_of(Phase phase_wanted, int step) const {
    for (std::size_t i = phases.size(); i > 0; --i) {
      if (phases[i - 1].phase == phase_wanted && phases[i - 1].step == step) return i - 1;
    }
    return phases.size();
  }
};

Meter::Meter() : state_(new State) {}

LabelScope::LabelScope(Category category, std::string label)
    : saved_category_(std::exchange(scope_category, category)),
      saved_label_(std::exchange(scope_label, std::move(label))) {}

LabelScope::~LabelScope() {
  scope_category = saved_category_;
  scope_label = std::move(saved_label_);
}

ExpectedScope::ExpectedScope(std::vector<ExpectedAllocation> expected, std::string otherwise)
    : expected_(std::move(expected)),
      otherwise_(std::move(otherwise)),
      outer_(std::exchange(expected_scope, this)),
      saved_label_(std::exchange(scope_label, std::string())) {}

ExpectedScope::~ExpectedScope() {
  expected_scope = outer_;
  scope_label = std::move(saved_label_);
}

ExpectedAllocation ExpectedScope::take(Bytes bytes) {
  const auto found = std::ranges::find(expected_, bytes, &ExpectedAllocation::bytes);
  if (found == expected_.end()) return {bytes, Category::temporaries, otherwise_};
  ExpectedAllocation taken = std::move(*found);
  expected_.erase(found);
  return taken;
}

void ExpectedScope::strike(const std::string& label) {
  const auto found = std::ranges::find(expected_, label, &ExpectedAllocation::label);
  if (found != expected_.end()) expected_.erase(found);
}

Meter& Meter::instance() {
  static Meter meter;
  return meter;
}

void Meter::install_cpu(Bytes budget) {
  const std::scoped_lock lock(state_->mutex);
  state_->budget = budget;
  if (std::exchange(state_->cpu_installed, true)) return;
  static auto* const kAllocator = new CountingAllocator;
  c10::SetCPUAllocator(kAllocator, 200);
}

void Meter::record_events(bool on) {
  const std::scoped_lock lock(state_->mutex);
  state_->recording = on;
}

void Meter::keep_history(std::size_t events) {
  const std::scoped_lock lock(state_->mutex);
  state_->history.reset();
  if (events > 0) state_->history.emplace(events);
}

MemoryHistory Meter::history() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->history ? *state_->history : MemoryHistory(0);
}

void Meter::take_device_peaks(std::function<DevicePeaks()> take) {
  const std::scoped_lock lock(state_->mutex);
  state_->take_device_peaks = std::move(take);
}

/// What was held at the most since the last call belongs to the phase that was current. The device's allocator calls
/// the meter under its own lock, so it is asked outside of the meter's.
void Meter::fold_device_peaks() {
  const std::function<DevicePeaks()> take = state_->peaks_of_device();
  if (!take) return;
  const DevicePeaks peaks = take();
  const std::scoped_lock lock(state_->mutex);
  MeasuredPhase& phase = state_->phases[state_->phase];
  phase.allocated = std::max(phase.allocated, peaks.allocated);
  phase.reserved = std::max(phase.reserved, peaks.reserved);
}

void Meter::enter(Phase phase, int step) {
  State& s = *state_;
  if (!s.is_in(phase, step)) fold_device_peaks();
  const std::scoped_lock lock(s.mutex);
  s.writer.set_phase(phase, step);
  s.host_writer.set_phase(phase, step);
  if (s.history) s.history->set_phase(phase, step);
  s.phase = s.index_of(phase, step);
  if (s.phase == s.phases.size())
    s.phases.push_back({.phase = phase, .step = step, .peak = s.live, .allocated = {}, .reserved = {}});
  s.phases[s.phase].peak = std::max(s.phases[s.phase].peak, s.live);
}

Bytes Meter::current() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->live;
}

Bytes Meter::peak() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->peak;
}

std::array<Bytes, kCategories> Meter::categories_at_peak() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->at_peak;
}

std::vector<MeasuredPhase> Meter::phases() {
  fold_device_peaks();
  const std::scoped_lock lock(state_->mutex);
  return state_->phases;
}

std::vector<MeasuredPhase> Meter::phases_of(int step) {
  fold_device_peaks();
  const std::scoped_lock lock(state_->mutex);
  std::vector<MeasuredPhase> of_step;
  std::ranges::copy_if(state_->phases, std::back_inserter(of_step),
                       [&](const MeasuredPhase& phase) { return phase.step == step; });
  return of_step;
}

Ledger Meter::take_ledger() {
  State& s = *state_;
  const std::scoped_lock lock(s.mutex);
  for (auto& [address, block] : s.blocks) block.event = -1;
  return std::exchange(s.writer, LedgerWriter{}).take();
}

Ledger Meter::take_host_ledger() {
  State& s = *state_;
  const std::scoped_lock lock(s.mutex);
  for (auto& [address, block] : s.host_blocks) block.event = -1;
  return std::exchange(s.host_writer, LedgerWriter{}).take();
}

Bytes Meter::host_peak() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->host_peak;
}

void Meter::host_allocated(const void* address, Bytes bytes, const std::string& label) {
  State& s = *state_;
  const std::scoped_lock lock(s.mutex);
  Block block{bytes, Category::temporaries, -1, false};
  if (s.recording) block.event = s.host_writer.allocate(bytes, block.category, s.host_writer.label(label));
  s.host_blocks[address] = block;
  s.host_live += bytes;
  s.host_peak = std::max(s.host_peak, s.host_live);
}

void Meter::host_freed(const void* address) {
  State& s = *state_;
  const std::scoped_lock lock(s.mutex);
  const auto found = s.host_blocks.find(address);
  if (found == s.host_blocks.end()) return;
  s.host_live -= found->second.bytes;
  if (found->second.event >= 0) s.host_writer.free(found->second.event);
  s.host_blocks.erase(found);
}

void Meter::reset() {
  take_ledger();
  take_host_ledger();
  State& s = *state_;
  const std::scoped_lock lock(s.mutex);
  s.phases.clear();
  s.phase = 0;
  s.host_peak = s.host_live;
  s.peak_beside_arenas = s.beside_arenas;
  s.peak = s.live;
  s.at_peak = s.by_category;
}

void Meter::check_budget(Bytes asked) {
  State& s = *state_;
  const std::scoped_lock lock(s.mutex);
  if (s.budget.n == 0 || s.live + asked <= s.budget) return;
  if (s.history) s.history->note(MemoryAction::oom, static_cast<std::uint64_t>((s.budget - s.live).n), asked, 0);
  throw OutOfMemory(out_of_memory_message(asked, s.live, s.budget, s.by_category));
}

void Meter::noted(MemoryAction action, std::uint64_t address, Bytes bytes, std::int64_t stream) {
  const std::scoped_lock lock(state_->mutex);
  if (state_->history) state_->history->note(action, address, bytes, stream);
}

void Meter::allocated(const void* address, Bytes bytes, std::int64_t stream) {
  const ExpectedAllocation name = name_of(bytes);
  State& s = *state_;
  const std::scoped_lock lock(s.mutex);
  Block block{bytes, name.category, -1, Arenas::contains(address)};
  if (s.recording) block.event = s.writer.allocate(bytes, name.category, s.writer.label(name.label));
  s.blocks[address] = block;
  if (s.history) s.history->alloc(number_of(address), bytes, name.category, name.label, stream);
  if (!block.in_arena) s.beside_arenas += bytes;
  s.peak_beside_arenas = std::max(s.peak_beside_arenas, s.beside_arenas);
  s.live += bytes;
  s.by_category[static_cast<std::size_t>(name.category)] += bytes;
  if (!s.phases.empty()) s.phases[s.phase].peak = std::max(s.phases[s.phase].peak, s.live);
  if (s.live <= s.peak) return;
  s.peak = s.live;
  s.at_peak = s.by_category;
}

void Meter::freed(const void* address, std::int64_t stream) {
  State& s = *state_;
  const std::scoped_lock lock(s.mutex);
  const auto found = s.blocks.find(address);
  if (found == s.blocks.end()) return;
  const Block block = found->second;
  s.blocks.erase(found);
  if (s.history) s.history->note(MemoryAction::free_completed, number_of(address), block.bytes, stream);
  s.live -= block.bytes;
  if (!block.in_arena) s.beside_arenas -= block.bytes;
  s.by_category[static_cast<std::size_t>(block.category)] -= block.bytes;
  if (block.event >= 0) s.writer.free(block.event);
}

Bytes Meter::peak_beside_arenas() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->peak_beside_arenas;
}

std::string out_of_memory_message(Bytes asked, Bytes live, Bytes budget,
                                  const std::array<Bytes, kCategories>& by_category) {
  std::vector<int> order;
  for (int c = 0; c < kCategories; ++c) {
    if (by_category[static_cast<std::size_t>(c)].n > 0) order.push_back(c);
  }
  const auto bytes_of = [&](int c) { return by_category[static_cast<std::size_t>(c)]; };
  std::ranges::stable_sort(order, [&](int a, int b) { return bytes_of(a) > bytes_of(b); });
  std::string largest;
  for (std::size_t i = 0; i < std::min<std::size_t>(order.size(), 3); ++i) {
    largest += fmt::format("{}{} {}", i == 0 ? "" : ", ", category_name(static_cast<Category>(order[i])),
                           format_size(bytes_of(order[i])));
  }
  return fmt::format("out of memory: {} on top of {} in use exceed the budget of {}; largest: {}", format_size(asked),
                     format_size(live), format_size(budget), largest.empty() ? "nothing" : largest);
}

}  // namespace vramfit
