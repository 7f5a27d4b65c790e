#include "estimator/allocator/first_step.h"

#include <algorithm>
#include <array>

#include "base/numbers/mix_bits.h"
#include "job/allocator/allocator_settings.h"

namespace vramfit {

namespace {

constexpr std::int64_t kSmallPage = std::int64_t{2} << 20;
/// kDistance: requests between two places at which a stage may be kept for other jobs, up to kLastKept, as jobs share
/// their beginnings: load and forward passes. kBetween: between two places at which states are compared.
constexpr std::size_t kDistance = 512, kLastKept = 8192, kBetween = 128;
constexpr std::size_t kMostStages = 64;
/// Each play reserves up to kStreams ranges of addresses, of which a card without a limit has room for 1,800.
constexpr int kMostPlays = 128;
// Odd, with bits of no pattern: several numbers become one word.
constexpr std::uint64_t kOfAddress = 0x9E3779B97F4A7C15, kOfBytes = 0xC2B2AE3D27D4EB4F, kOfEnd = 0xD6E8FEB86659FD93;

/// The hash of a list that goes on with `what`.
constexpr std::uint64_t hash_with(std::uint64_t hash, std::uint64_t what) {
  constexpr unsigned kHalf = 32;
  hash = (hash ^ what) * kOfAddress;
  return hash ^ hash >> kHalf;
}

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

}  // namespace

/// Of what a job asks for before each place at which a stage may be kept, and from each place on at which states are
/// compared.
struct FirstSteps::Hashes {
  std::vector<std::uint64_t> before;  // by kDistance places
  std::vector<std::uint64_t> after;   // by kBetween requests that are left

  explicit Hashes(const std::vector<Request>& requests) {
    std::uint64_t hash = 1;
    for (std::size_t place = 0; place < std::min(requests.size(), kLastKept); ++place) {
      if (place % kDistance == 0) before.push_back(hash);
      const Request& request = requests[place];
      hash = hash_with(
          hash, request.bytes > 0 ? bytes_and_stream(request) : place - static_cast<std::size_t>(request.partner));
    }
    hash = 2;
    for (std::size_t left = 0; left <= requests.size(); ++left) {
      if (left % kBetween == 0) after.push_back(hash);
      if (left == requests.size()) break;
      const std::size_t place = requests.size() - 1 - left;
      const Request& request = requests[place];
      const std::uint64_t freed_in =
          request.partner < 0 ? 0 : static_cast<std::uint64_t>(request.partner) - static_cast<std::uint64_t>(place);
      hash = hash_with(hash, request.bytes > 0 ? bytes_and_stream(request) + freed_in * kOfEnd : 1);
    }
  }

 private:
  static std::uint64_t bytes_and_stream(const Request& request) {
    return static_cast<std::uint64_t>(request.bytes) * kOfBytes + static_cast<std::uint64_t>(request.stream);
  }
};

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

/// Blocks that were made before are freed when this job says.
void FirstSteps::Stage::prepare_for(const std::vector<Request>& requests) {
  blocks.resize(requests.size(), CachingAllocator::kOutOfMemory);
  live = 0;
  for (std::size_t made = 0; made < place; ++made) {
    if (blocks[made] != CachingAllocator::kOutOfMemory) live += share_of(requests, made);
  }
}

inline std::uint64_t FirstSteps::Stage::share_of(const std::vector<Request>& requests, std::size_t made) const {
  const auto stream = static_cast<std::size_t>(requests[made].stream);
  const int block = blocks[made], free = requests[made].partner;
  const std::size_t from_end = free < 0 ? 0 : requests.size() - static_cast<std::size_t>(free);
  return mix_bits(static_cast<std::uint64_t>(allocator.address(block) - first[stream]) * kOfAddress +
                  static_cast<std::uint64_t>(allocator.size(block)) * kOfBytes +
                  (from_end * kStreams + stream) * kOfEnd);
}

/// Nothing is given back, so what is mapped of a range is its beginning; of that, what isn't a block that is there is
/// free, and free neighbours are always joined.
std::uint64_t FirstSteps::Stage::state() const {
  std::uint64_t state = live;
  for (const std::int64_t bytes : mapped) state = hash_with(state, static_cast<std::uint64_t>(bytes));
  return state;
}

void FirstSteps::Stage::allocate(const std::vector<Request>& requests) {
  const Request& request = requests[place];
  const auto stream = static_cast<std::size_t>(request.stream);
  const std::int64_t before = allocator.stats().reserved.current;
  const int block = blocks[place] = allocator.malloc(request.bytes, request.stream);
  if (block == CachingAllocator::kOutOfMemory) return;
  if (mapped[stream] == 0) first[stream] = allocator.address(block);
  mapped[stream] += allocator.stats().reserved.current - before;
  live += share_of(requests, place);
}

inline void FirstSteps::Stage::play(const std::vector<Request>& requests) {
  if (requests[place].bytes > 0) {
    allocate(requests);
  } else {
    const auto made = static_cast<std::size_t>(requests[place].partner);
    if (blocks[made] != CachingAllocator::kOutOfMemory) {
      live -= share_of(requests, made);
      allocator.free(std::exchange(blocks[made], CachingAllocator::kOutOfMemory));
    }
  }
  ++place;
}

void FirstSteps::keep(std::uint64_t before, const Stage& stage) {
  if (stages_.size() == kMostStages) stages_.erase(stages_.begin() + 1);  // the first is that before all requests
  stages_.emplace_back(before, stage);
}

const FirstSteps::Stage& FirstSteps::latest_stage(const Hashes& hashes) const {
  for (std::size_t at = hashes.before.size(); at-- > 1;) {
    const auto found = std::ranges::find(stages_, hashes.before[at], &std::pair<std::uint64_t, Stage>::first);
    if (found != stages_.end()) return found->second;
  }
  return stages_.front().second;
}

std::size_t FirstSteps::shared_beyond(std::size_t from, const Hashes& hashes) {
  std::size_t shared = 0;
  for (std::size_t at = from / kDistance + 1; at < hashes.before.size(); ++at) {
    if (!asked_.insert(hashes.before[at]).second) shared = at * kDistance;
  }
  return shared;
}

FirstSteps::Known FirstSteps::play(const std::vector<Request>& requests, std::int64_t limit) {
  const Hashes hashes(requests);
  Stage stage = latest_stage(hashes);
  const std::size_t shared = shared_beyond(stage.place, hashes);
  stage.prepare_for(requests);
  const PeakedSum& reserved = stage.allocator.stats().reserved;
  std::vector<std::uint64_t> passed;  // states
  Known found;
  while (!found.is_end && reserved.current < limit) {
    if (shared > 0 && stage.place == shared) keep(hashes.before[shared / kDistance], stage);
    const std::size_t left = requests.size() - stage.place;
    if (left == 0) {
      found = {.reserved = reserved.current, .is_end = true};
      break;
    }
    if (left % kBetween == 0) {
      passed.push_back(mix_bits(stage.state(), hashes.after[left / kBetween]));
      const auto known = known_.find(passed.back());
      if (known != known_.end() && (known->second.is_end || known->second.reserved >= limit)) {
        found = known->second;
        break;
      }
    }
    stage.play(requests);
  }
  found.reserved = std::max(found.reserved, reserved.current);
  for (const std::uint64_t state : passed) {
    Known& known = known_[state];
    if (!known.is_end) known = {.reserved = std::max(known.reserved, found.reserved), .is_end = found.is_end};
  }
  return found;
}

bool FirstSteps::reserve(const Ledger& requests, const std::string& allocator, Bytes below) {
  AllocatorSettings settings = allocator_settings(allocator);
  if (!settings.expandable_segments) return false;
  settings.memory_fraction = 1;
  if (settings != settings_) {
    settings_ = settings;
    stages_.clear();
    asked_.clear();
    known_.clear();
  }
  if (stages_.empty() || plays_ == kMostPlays) {
    stages_.clear();
    card_.emplace(Placement{AddressOrder::ascending, 0});
    plays_ = 0;
    stages_.emplace_back(0, Stage{.allocator = CachingAllocator(settings, *card_), .blocks = {}});
  }
  ++plays_;
  const auto [large, small_pages] = read(requests);
  const std::int64_t limit = (below - small_pages).n;
  return play(large, limit).reserved >= limit;
}

}  // namespace vramfit
