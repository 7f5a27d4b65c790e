#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "executor/meter/arena.h"
#include "tests/executor/training/thread_ranks_torch.h"

namespace vramfit::testing {

namespace {

using Tensors = std::vector<at::Tensor>;

/// What all threads share: one mutex for everything that they wait for, and whether one of them has failed.
struct Threads {
  std::mutex mutex;
  std::condition_variable changed;
  std::exception_ptr first_error;

  /// Throws when another rank has failed, as what is waited for never comes then.
  template <typename Condition>
  void wait(std::unique_lock<std::mutex>& lock, const Condition& holds) {
    changed.wait(lock, [&] { return first_error || holds(); });
    if (!holds()) throw std::runtime_error("another rank failed");
  }

  void fail() {
    const std::scoped_lock lock(mutex);
    if (!first_error) first_error = std::current_exception();
    changed.notify_all();
  }
};

/// The members of one group: they meet, and show each other their tensors.
class Circle {
 public:
  Circle(Threads& threads, int size) : threads_(threads), tensors_(static_cast<std::size_t>(size)) {}
  int size() const { return static_cast<int>(tensors_.size()); }

  void meet() {
    std::unique_lock lock(threads_.mutex);
    const std::int64_t round = round_;
    if (++here_ == size()) {
      here_ = 0;
      ++round_;
      threads_.changed.notify_all();
    }
    threads_.wait(lock, [&] { return round_ != round; });
  }

  /// `work` sees the tensors of all members, who don't go on before each has done its own.
  template <typename Work>
  void together(int rank, const Tensors& own, const Work& work) {
    tensors_[static_cast<std::size_t>(rank)] = own;
    meet();
    for (const Tensors& theirs : tensors_) {
      if (theirs.size() != own.size()) throw std::logic_error("ranks give a collective different tensors");
    }
    work(tensors_);
    meet();
    tensors_[static_cast<std::size_t>(rank)].clear();  // a program frees its tensors when it says
  }

 private:
  Threads& threads_;
  std::vector<Tensors> tensors_;  // by rank
  int here_ = 0;
  std::int64_t round_ = 0;
};

at::Tensor slice(const at::Tensor& tensor, int rank, int ranks) {
  const std::int64_t elements = tensor.numel() / ranks;
  return tensor.view({-1}).narrow(0, rank * elements, elements);
}

/// Done when they return.
class ThreadCollectives final : public Collectives {
 public:
  ThreadCollectives(Circle& circle, int rank) : circle_(circle), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return circle_.size(); }
  void barrier() override { circle_.meet(); }

  Pending all_gather(Tensors gathered) override {
    circle_.together(rank_, gathered, [&](const std::vector<Tensors>& all) {
      for (int other = 0; other < size(); ++other) {
        if (other == rank_) continue;
        const Tensors& theirs = all[static_cast<std::size_t>(other)];
        for (std::size_t i = 0; i < gathered.size(); ++i) {
          slice(gathered[i], other, size()).copy_(slice(theirs[i], other, size()));
        }
      }
    });
    return nullptr;
  }

  Pending reduce_scatter(Tensors pieces) override {
    circle_.together(rank_, pieces, [&](const std::vector<Tensors>& all) {
      for (int other = 0; other < size(); ++other) {
        if (other == rank_) continue;
        const Tensors& theirs = all[static_cast<std::size_t>(other)];
        for (std::size_t i = 0; i < pieces.size(); ++i) {
          slice(pieces[i], rank_, size()).add_(slice(theirs[i], rank_, size()));
        }
      }
    });
    return nullptr;
  }

  Pending all_to_all(Tensors sent, Tensors received) override {
    circle_.together(rank_, sent, [&](const std::vector<Tensors>& all) {
      for (int other = 0; other < size(); ++other) {
        const Tensors& theirs = all[static_cast<std::size_t>(other)];
        for (std::size_t i = 0; i < sent.size(); ++i) {
          slice(received[i], other, size()).copy_(slice(theirs[i], rank_, size()));
        }
      }
    });
    return nullptr;
  }

  Pending all_reduce(Tensors tensors) override {
    const ArenaScope none(nullptr);  // the sums are no part of a program
    Tensors sums;
    circle_.together(rank_, tensors, [&](const std::vector<Tensors>& all) {
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        sums.push_back(all[0][i].clone());
        for (std::size_t other = 1; other < all.size(); ++other) sums.back().add_(all[other][i]);
      }
    });
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(sums[i]);
    return nullptr;
  }

 private:
  Circle& circle_;
  int rank_;
};

/// Texts by topic, which stay.
class Board {
 public:
  explicit Board(Threads& threads) : threads_(threads) {}
  void set(const std::string& key, const std::string& text) {
    const std::scoped_lock lock(threads_.mutex);
    texts_[key] = text;
    threads_.changed.notify_all();
  }
  std::optional<std::string> find(const std::string& key) {
    const std::scoped_lock lock(threads_.mutex);
    const auto found = texts_.find(key);
    return found == texts_.end() ? std::nullopt : std::optional(found->second);
  }
  std::string get(const std::string& key) {
    std::unique_lock lock(threads_.mutex);
    threads_.wait(lock, [&] { return texts_.contains(key); });
    return texts_.at(key);
  }

 private:
  Threads& threads_;
  std::map<std::string, std::string> texts_;
};

/// All groups of all ranks; group `g` of an axis is its g-th circle.
struct World {
  World(int ranks, std::int64_t shards, std::int64_t reshards) : board(threads), whole(threads, ranks) {
    const int shard_size = static_cast<int>(shards), reshard_size = static_cast<int>(reshards);
    for (int first = 0; first < ranks; first += shard_size) shard.emplace_back(threads, shard_size);
    for (int place = 0; place < shard_size; ++place) replicate.emplace_back(threads, ranks / shard_size);
    for (int first = 0; reshard_size > 0 && first < ranks; first += reshard_size) {
      reshard.emplace_back(threads, reshard_size);
    }
  }
  Threads threads;
  Board board;
  Circle whole;
  std::deque<Circle> shard, replicate, reshard;
};

class ThreadGroups final : public ProcessGroups {
 public:
  ThreadGroups(World& world, int rank) : world_(world), rank_(rank), whole_(group(world.whole, rank)) {
    const int shards = world.shard.front().size();
    shard_ = group(circle(world.shard, rank / shards), rank % shards);
    replicate_ = group(circle(world.replicate, rank % shards), rank / shards);
    if (world.reshard.empty()) return;
    const int members = world.reshard.front().size();
    reshard_ = group(circle(world.reshard, rank / members), rank % members);
  }
  Collectives& world() override { return *whole_; }
  Collectives& shard() override { return *shard_; }
  Collectives& replicate() override { return *replicate_; }
  Collectives& reshard() override { return reshard_ ? *reshard_ : *shard_; }

  std::vector<std::string> gather_texts(const std::string& topic, const std::string& text) override {
    std::vector<std::string> texts = share_texts("gathered " + topic, text);
    return rank_ == 0 ? texts : std::vector<std::string>{};
  }
  std::vector<std::string> share_texts(const std::string& topic, const std::string& text) override {
    const auto key = [&](int rank) { return topic + "/" + std::to_string(rank); };
    world_.board.set(key(rank_), text);
    std::vector<std::string> texts;
    for (int rank = 0; rank < whole_->size(); ++rank) texts.push_back(world_.board.get(key(rank)));
    return texts;
  }
  void post(const std::string& topic, const std::string& text) override { world_.board.set("posted " + topic, text); }
  std::optional<std::string> posted(const std::string& topic) override { return world_.board.find("posted " + topic); }

 private:
  static Circle& circle(std::deque<Circle>& circles, int index) { return circles[static_cast<std::size_t>(index)]; }
  static std::unique_ptr<Collectives> group(Circle& circle, int rank) {
    if (circle.size() == 1) return local_collectives();
    return std::make_unique<ThreadCollectives>(circle, rank);
  }

  World& world_;
  int rank_;
  std::unique_ptr<Collectives> whole_, shard_, replicate_, reshard_;
};

}  // namespace

void run_rank_threads(int world, std::int64_t shard_ranks, const std::function<void(ProcessGroups&)>& body,
                      std::int64_t reshard_ranks) {
  World shared(world, shard_ranks, reshard_ranks);
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(world));
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ThreadGroups groups(shared, rank);
        body(groups);
        groups.world().barrier();
      } catch (...) {
        shared.threads.fail();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (shared.threads.first_error) std::rethrow_exception(shared.threads.first_error);
}

}  // namespace vramfit::testing
