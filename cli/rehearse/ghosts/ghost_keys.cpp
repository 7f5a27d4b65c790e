#include "cli/rehearse/ghosts/ghost_keys.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <random>

#include "base/error.h"

namespace vramfit {

namespace {

constexpr std::size_t kKept = 32;            // names in the report; all answers are counted
constexpr std::size_t kKeptPerShape = 4096;  // keys that are compared with one that is waited for
constexpr std::size_t kUniqueIdBytes = 128;  // NCCL_UNIQUE_ID_BYTES

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/// "rank_12/0" -> "rank_#/#" and {"12", "0"}.
struct Pattern {
  std::string shape;
  std::vector<std::string_view> numbers;
};

Pattern pattern_of(std::string_view key) {
  Pattern pattern;
  for (std::size_t at = 0; at < key.size();) {
    if (!is_digit(key[at])) {
      pattern.shape += key[at++];
      continue;
    }
    const std::size_t start = at;
    while (at < key.size() && is_digit(key[at])) ++at;
    pattern.shape += '#';
    pattern.numbers.push_back(key.substr(start, at - start));
  }
  return pattern;
}

// Rank 0 of a communicator, or the first of a set of ranks, makes an id that the others wait for: ProcessGroupNCCL's
// keys are a counter, a pair "low:high", or "UniqueNCCLID:n", below the group's and the device's name.
bool is_unique_id(std::string_view key) {
  const auto slash = key.rfind('/');
  if (slash == std::string_view::npos || key.find("cuda/") == std::string_view::npos) return false;
  const std::string shape = pattern_of(key.substr(slash + 1)).shape;
  return shape == "#" || shape == "#:#" || shape == "UniqueNCCLID:#";
}

std::string unique_id() {
  std::random_device random;
  std::uniform_int_distribution<int> byte(0, 255);
  std::string id(kUniqueIdBytes, '\0');
  for (char& each : id) each = static_cast<char>(byte(random));
  return id;
}

}  // namespace

void GhostKeys::put(const std::string& key, std::string value) {
  std::string& place = values_[key];
  bytes_ += static_cast<std::int64_t>(value.size()) - static_cast<std::int64_t>(place.size());
  place = std::move(value);
}

void GhostKeys::count(const std::string& key) {
  ++ghost_answers_;
  if (ghost_keys_.size() < kKept) ghost_keys_.insert(key);
}

void GhostKeys::set(const std::string& key, std::string value) {
  put(key, std::move(value));
  auto& keys = set_by_shape_[pattern_of(key).shape];
  if (keys.size() < kKeptPerShape && std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
}

void GhostKeys::append(const std::string& key, const std::string& value) { set(key, get(key) + value); }

std::string GhostKeys::compare_set(const std::string& key, const std::string& expected, const std::string& desired) {
  const auto found = values_.find(key);
  if (found == values_.end() && !expected.empty()) return expected;
  if (found == values_.end() || found->second == expected) set(key, desired);
  return get(key);
}

std::string GhostKeys::get(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? std::string() : found->second;
}

std::int64_t GhostKeys::add(const std::string& key, std::int64_t amount) {
  const std::string text = get(key);
  std::int64_t value = 0, sum = 0, by_all = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (!text.empty() && (error != std::errc() || end != text.data() + text.size())) {
    throw InputError("store: key \"" + key + "\" holds no number to add to");
  }
  if (__builtin_mul_overflow(amount, world_.ranks, &by_all) || __builtin_add_overflow(value, by_all, &sum)) {
    throw InputError("store: key \"" + key + "\": the sum is too large");
  }
  if (amount != 0 && world_.ranks > 1) count(key);
  counters_.insert(key);
  put(key, std::to_string(sum));
  return sum;
}

bool GhostKeys::erase(const std::string& key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  bytes_ -= static_cast<std::int64_t>(found->second.size());
  values_.erase(found);
  return true;
}

std::vector<std::string> GhostKeys::names() const {
  std::vector<std::string> names;
  for (const auto& [key, value] : values_) names.push_back(key);
  return names;
}

void GhostKeys::push(const std::string& queue, std::string value) {
  bytes_ += static_cast<std::int64_t>(value.size());
  queues_[queue].push_back(std::move(value));
}

bool GhostKeys::pop(const std::string& queue, std::string& value) {
  const auto found = queues_.find(queue);
  if (found == queues_.end() || found->second.empty()) return false;
  value = std::move(found->second.front());
  found->second.pop_front();
  bytes_ -= static_cast<std::int64_t>(value.size());
  return true;
}

std::int64_t GhostKeys::length(const std::string& queue) const {
  const auto found = queues_.find(queue);
  return found == queues_.end() ? 0 : static_cast<std::int64_t>(found->second.size());
}

bool GhostKeys::has(const std::string& key) const { return values_.contains(key) || length(key) > 0; }

// The last to arrive sets a flag beside the counter. A group may be smaller than the world, so the count does not say
// that all have arrived; that this rank has does.
bool GhostKeys::is_barrier_passed(const std::string& key) const {
  struct Flag {
    std::string_view ending, counter;
  };
  constexpr std::array kFlags{Flag{":last_worker", ""}, Flag{"/last_member", "/num_members"},
                              Flag{"/last_members", "/num_members"}};
  return std::ranges::any_of(kFlags, [&](const Flag& flag) {
    if (!key.ends_with(flag.ending)) return false;
    const std::string counter = key.substr(0, key.size() - flag.ending.size()) + std::string(flag.counter);
    return counters_.contains(counter);
  });
}

// What the played rank set under the same name except for one number: its own rank, or its position in a group.
const std::string* GhostKeys::like_own(const std::string& key) const {
  const Pattern wanted = pattern_of(key);
  const auto keys = set_by_shape_.find(wanted.shape);
  if (keys == set_by_shape_.end()) return nullptr;
  const std::string played = std::to_string(world_.played);
  const std::string* found = nullptr;
  for (const std::string& own : keys->second) {
    const auto value = values_.find(own);
    if (value == values_.end()) continue;
    const Pattern pattern = pattern_of(own);
    const auto [mine, theirs] = std::ranges::mismatch(pattern.numbers, wanted.numbers);
    if (mine == pattern.numbers.end()) continue;
    if (!std::equal(mine + 1, pattern.numbers.end(), theirs + 1)) continue;
    found = &value->second;
    if (*mine == played) break;
  }
  return found;
}

bool GhostKeys::has_or_ghosts_set(const std::string& key) {
  if (has(key)) return true;
  if (world_.ranks < 2) return false;
  if (is_barrier_passed(key)) {
    put(key, "1");
  } else if (const std::string* own = like_own(key)) {
    put(key, *own);
  } else if (is_unique_id(key)) {
    put(key, unique_id());
  } else {
    return false;
  }
  count(key);
  return true;
}

}  // namespace vramfit
