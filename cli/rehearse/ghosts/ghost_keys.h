// The contents of a torch.distributed store in a world of which only one rank runs: the keys that it set, and what the
// other ranks would have set.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace vramfit {

struct GhostWorld {
  std::int64_t ranks = 1;
  std::int64_t played = 0;
};

class GhostKeys {
 public:
  explicit GhostKeys(GhostWorld world) : world_(world) {}

  void set(const std::string& key, std::string value);
  void append(const std::string& key, const std::string& value);
  /// Like torch's store: returns the value afterwards, or `expected` if there is none and none was to be set.
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired);
  std::string get(const std::string& key) const;  // empty if there is none
  /// Every rank adds what the played rank adds. Throws InputError if the value is not a number.
  std::int64_t add(const std::string& key, std::int64_t amount);
  bool erase(const std::string& key);
  std::int64_t size() const { return static_cast<std::int64_t>(values_.size()); }
  std::vector<std::string> names() const;

  void push(const std::string& queue, std::string value);
  bool pop(const std::string& queue, std::string& value);
  std::int64_t length(const std::string& queue) const;

  /// Whether the key exists, or something is in its queue.
  bool has(const std::string& key) const;
  /// The same, after ghosts have set what they can know: that all ranks have arrived at a barrier, a value that the
  /// played rank set under the same name with its own number, an id that rank 0 creates.
  bool has_or_ghosts_set(const std::string& key);

  std::int64_t bytes() const { return bytes_; }
  std::int64_t ghost_answers() const { return ghost_answers_; }
  const std::set<std::string>& ghost_keys() const { return ghost_keys_; }

 private:
  bool is_barrier_passed(const std::string& key) const;
  const std::string* like_own(const std::string& key) const;
  void put(const std::string& key, std::string value);
  void count(const std::string& key);

  GhostWorld world_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::deque<std::string>> queues_;
  std::map<std::string, std::vector<std::string>> set_by_shape_;  // the played rank's keys, by their non-numeric parts
  std::set<std::string> counters_, ghost_keys_;
  std::int64_t ghost_answers_ = 0, bytes_ = 0;
};

}  // namespace vramfit
