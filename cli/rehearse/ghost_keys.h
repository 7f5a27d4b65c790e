// What a torch.distributed store holds in a world of which one rank runs: keys as they are set, and what the others
// would have put there.
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
  /// As torch's store: the value that is there afterwards, or `expected` where there is none and none was to be.
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired);
  std::string get(const std::string& key) const;  // empty if there is none
  /// Every rank adds what the played one adds. Throws InputError when the value is no number.
  std::int64_t add(const std::string& key, std::int64_t amount);
  bool erase(const std::string& key);
  std::int64_t size() const { return static_cast<std::int64_t>(values_.size()); }
  std::vector<std::string> names() const;

  void push(const std::string& queue, std::string value);
  bool pop(const std::string& queue, std::string& value);
  std::int64_t length(const std::string& queue) const;

  /// Whether the key is there, or something in its queue.
  bool has(const std::string& key) const;
  /// The same, after ghosts have put there what they can know: that all have arrived at a barrier, what the played rank
  /// set under the same name with its own number, an id that rank 0 makes.
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
  std::map<std::string, std::vector<std::string>> set_by_shape_;  // keys that the played rank set, by what is no number
  std::set<std::string> counters_, ghost_keys_;
  std::int64_t ghost_answers_ = 0, bytes_ = 0;
};

}  // namespace vramfit
