#include "estimator/allocator/first_step.h"

#include <algorithm>
#include <array>

#include "base/numbers/mix_bits.h"
#include "job/allocator/allocator_settings.h"

namespace vramfit {

namespace {

constexpr std::int64_t kSmallPage = std::int64_t{2} << 20;
/// kDistance: requests between two comparisons of states; one takes as long as a hundred requests. kLastKept: beyond so
/// many requests, no state is kept for other jobs, as jobs share their beginnings: load and forward passes.
constexpr std::size_t kDistance = 512, kLastKept = 8192;
constexpr std::size_t kMostStages = 64;

/// Behind it comes what isn't known to follow: other passes of what repeats, other steps, and what is asked for once
/// cached memory was given back.
std::size_t end_of(const Ledger& requests) {
  std::size_t end = requests.events.size();
  for (const Repeat& repeat : requests.repeats) {
    if (repeat.times != 1) end = std::min(end, repeat.end);
  }
  const auto first = requests.events.begin();
  const auto last = std::find_if(first, first + static_cast<std::ptrdiff_t>(end),
                                 [](const Event& event) { return event.bytes == 0 || event.step > 1; });
  return static_cast<std::size_t>(last - first);
}

/// Of each place, what was asked for before it.
class Before {
 public:
  std::uint64_t hash() const { return hash_; }
  template <typename Request>
  void add(const Request& request, std::size_t place) {
    const auto what = request.bytes > 0
                          ? static_cast<std::uint64_t>(request.bytes) << 8U | static_cast<std::uint64_t>(request.stream)
                          : place - static_cast<std::size_t>(request.partner);
    hash_ = mix_bits(hash_ + what);
  }

 private:
  std::uint64_t hash_ = 1;
};

}  // namespace

/// Ids are given again, so that what is freed is the last that had its id.
FirstSteps::Requests FirstSteps::read(const Ledger& requests) const {
  Requests read;
  const CachingAllocator& sizes = stages_.front().second.allocator;
  const std::size_t end = end_of(requests);
  read.large.reserve(end);
  struct Latest {
    std::int64_t bytes = 0;
    int place = -1;  // of a large one
  };
  std::vector<Latest> latest;  // by id
  std::array<PeakedSum, CachingAllocator::kStreams> small;
  for (std::size_t i = 0; i < end; ++i) {
    const Event& event = requests.events[i];
    const auto id = static_cast<std::size_t>(event.id);
    const int stream = static_cast<int>(event.stream), place = static_cast<int>(read.large.size());
    if (id >= latest.size()) latest.resize(std::max(id + 1, 2 * latest.size()));
    if (event.bytes > 0) {
      const bool is_small = sizes.is_small_request(event.bytes);
      latest[id] = {.bytes = event.bytes, .place = is_small ? -1 : place};
      if (is_small) {
        small[static_cast<std::size_t>(stream)].add(event.bytes);
      } else {
        read.large.push_back({.bytes = event.bytes, .stream = stream});
      }
    } else if (latest[id].place < 0) {
      small[static_cast<std::size_t>(stream)].add(-latest[id].bytes);
    } else {
      read.large[static_cast<std::size_t>(latest[id].place)].partner = place;
      read.large.push_back({.stream = stream, .partner = latest[id].place});
    }
  }
  for (const PeakedSum& of_stream : small) read.small_pages += Bytes{ceil_div(of_stream.peak, kSmallPage) * kSmallPage};
  return read;
}

/// Of a block that is there, only when it will be freed counts, from now on.
std::uint64_t FirstSteps::state_of(const Stage& stage, const std::vector<Request>& requests, std::size_t place) {
  std::vector<std::int64_t> owners;
  for (std::size_t made = 0; made < place; ++made) {
    if (stage.blocks[made] == CachingAllocator::kOutOfMemory) continue;
    const auto block = static_cast<std::size_t>(stage.blocks[made]);
    if (owners.size() <= block) owners.resize(2 * block + 1);
    const int free = requests[made].partner;
    owners[block] = free < 0 ? 0 : free - static_cast<std::int64_t>(place) + 1;
  }
  return stage.allocator.state(owners);
}

void FirstSteps::keep(std::uint64_t before, const Stage& stage) {
  if (std::ranges::find(stages_, before, &std::pair<std::uint64_t, Stage>::first) != stages_.end()) return;
  if (stages_.size() == kMostStages) stages_.erase(stages_.begin() + 1);  // the first is that before all requests
  stages_.emplace_back(before, stage);
}

bool FirstSteps::reserve(const Ledger& requests, const std::string& allocator, Bytes below) {
  AllocatorSettings settings = allocator_settings(allocator);
  if (!settings.expandable_segments) return false;
  settings.memory_fraction = 1;
  if (stages_.empty() || settings != settings_) {
    settings_ = settings;
    stages_.clear();
    known_.clear();
    stages_.emplace_back(Before{}.hash(), Stage{.allocator = CachingAllocator(settings, card_), .blocks = {}});
  }
  const auto [large, small_pages] = read(requests);
  const std::int64_t limit = (below - small_pages).n;
  const std::size_t size = large.size();

  // What was asked for before each place at which stages are kept, and what follows each at which states are compared.
  std::vector<std::uint64_t> before, after;
  Before so_far;
  for (std::size_t place = 0; place < std::min(size, kLastKept); ++place) {
    if (place % kDistance == 0) before.push_back(so_far.hash());
    so_far.add(large[place], place);
  }
  std::uint64_t hash = 2;
  for (std::size_t place = size; place-- > 0;) {
    if ((size - 1 - place) % kDistance == 0) after.push_back(hash);
    const Request& request = large[place];
    const std::uint64_t freed_in =
        request.partner < 0 ? 0 : static_cast<std::uint64_t>(request.partner) - static_cast<std::uint64_t>(place);
    const std::uint64_t what =
        request.bytes > 0
            ? mix_bits(static_cast<std::uint64_t>(request.bytes) << 8U | static_cast<std::uint64_t>(request.stream)) +
                  freed_in
            : 1;
    hash = mix_bits(hash + what);
  }
  if (size % kDistance == 0) after.push_back(hash);

  // From the last place up to which another job has asked for the same.
  std::size_t place = 0;
  const Stage* latest = &stages_.front().second;
  for (std::size_t kept = before.size(); kept-- > 1;) {
    const auto found = std::ranges::find(stages_, before[kept], &std::pair<std::uint64_t, Stage>::first);
    if (found == stages_.end()) continue;
    latest = &found->second;
    place = kept * kDistance;
    break;
  }
  Stage stage = *latest;
  const std::size_t begin = place;
  stage.blocks.resize(size, CachingAllocator::kOutOfMemory);
  std::vector<std::uint64_t> passed;
  const auto end_with = [&](std::int64_t reserved, bool is_end) {
    for (const std::uint64_t state : passed) {
      Known& known = known_[state];
      if (!known.is_end) known = {.reserved = std::max(known.reserved, reserved), .is_end = is_end};
    }
    return reserved >= limit;
  };
  const PeakedSum& reserved = stage.allocator.stats().reserved;
  for (; place < size; ++place) {
    if (place % kDistance == 0 && place > begin && place < kLastKept) keep(before[place / kDistance], stage);
    const std::size_t left = size - place;
    if (left % kDistance == 0) {
      const std::uint64_t state = mix_bits(state_of(stage, large, place), after[left / kDistance]);
      const auto known = known_.find(state);
      if (known != known_.end() && (known->second.is_end || known->second.reserved >= limit)) {
        return end_with(known->second.reserved, known->second.is_end);
      }
      passed.push_back(state);
    }
    const Request& request = large[place];
    if (request.bytes > 0) {
      stage.blocks[place] = stage.allocator.malloc(request.bytes, request.stream);
      if (reserved.current >= limit) return end_with(reserved.current, false);
    } else {
      int& block = stage.blocks[static_cast<std::size_t>(request.partner)];
      if (block != CachingAllocator::kOutOfMemory) stage.allocator.free(block);
      block = CachingAllocator::kOutOfMemory;
    }
  }
  return end_with(reserved.current, true);
}

}  // namespace vramfit
