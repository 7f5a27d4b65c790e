#include "executor/sharding/process_groups.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "executor/observe/observed_collectives.h"
#include "executor/place/failure_watch.h"
#include "executor/place/first_line.h"
#include "executor/place/own_address.h"
#include "executor/sharding/backends_torch.h"

namespace vramfit {

namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// Ranks of a job are started at about the same time.
constexpr std::chrono::milliseconds kLateRanks{20'000};

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

class StoreGroups final : public ProcessGroups {
 public:
  StoreGroups(const GroupOptions& options, StorePtr store) : options_(options), store_(std::move(store)) {
    const int world = options.place.world, rank = options.place.rank, shards = static_cast<int>(options.shard_ranks);
    if (shards < 1 || world % shards != 0) {
      throw InputError(fmt::format("{} ranks can't be divided into groups of {} (mesh shard)", world, shards));
    }
    if (world > 1 && !options.ghosts) agree();
    if (world > 1 && !options.ghosts && options.device == DeviceKind::cpu) find_own_address();
    const bool one_axis = shards == 1 || shards == world;
    if (one_axis) world_ = group("world", rank, world);
    shard_ = shards == world ? nullptr : group(fmt::format("shard group {}", rank / shards), rank % shards, shards);
    const int replicas = world / shards;
    replicate_ =
        replicas == world ? nullptr : group(fmt::format("replicate group {}", rank % shards), rank / shards, replicas);
    if (!one_axis) world_ = mesh_collectives(*shard_, *replicate_, rank);
    const int members = static_cast<int>(options.reshard_ranks);
    if (members == 0) return;
    if (shards % members != 0) throw std::logic_error("groups of --reshard do not divide the shards");
    reshard_ = group(fmt::format("reshard group {}", rank / members), rank % members, members);
  }

  Collectives& world() override { return *world_; }
  Collectives& shard() override { return shard_ ? *shard_ : *world_; }
  Collectives& replicate() override { return replicate_ ? *replicate_ : *world_; }

  Collectives& reshard() override { return reshard_ ? *reshard_ : shard(); }

  std::vector<std::string> gather_texts(const std::string& topic, const std::string& text) override {
    const RankPlace& place = options_.place;
    if (place.world == 1 || options_.ghosts) return {text};
    const auto key = [&](int rank) { return fmt::format("texts/{}/{}", topic, rank); };
    return guarded(topic, [&]() -> std::vector<std::string> {
      if (place.rank != 0) {
        store_->set(key(place.rank), bytes_of(text));
        read(key(0));  // until it has been read, as rank 0 serves the store
        return {};
      }
      std::vector<std::string> texts{text};
      for (int rank = 1; rank < place.world; ++rank) texts.push_back(read(key(rank)));
      store_->set(key(0), bytes_of("read"));
      return texts;
    });
  }

  std::vector<std::string> share_texts(const std::string& topic, const std::string& text) override {
    const RankPlace& place = options_.place;
    if (place.world == 1) return {text};
    const auto key = [&](int rank) { return fmt::format("shared/{}/{}", topic, rank); };
    return guarded(topic, [&] {
      store_->set(key(place.rank), bytes_of(text));
      std::vector<std::string> texts;
      for (int rank = 0; rank < place.world; ++rank) texts.push_back(read(key(rank)));
      return texts;
    });
  }

  void post(const std::string& topic, const std::string& text) override {
    guarded(topic, [&] { store_->set("posted/" + topic, bytes_of(text)); });
  }

  std::optional<std::string> posted(const std::string& topic) override {
    return guarded(topic, [&]() -> std::optional<std::string> {
      const std::string key = "posted/" + topic;
      if (!store_->check({key})) return std::nullopt;
      return read(key);
    });
  }

 private:
  /// What fails while `exchange` talks to the store names rank and topic.
  template <typename Exchange>
  std::invoke_result_t<Exchange> guarded(const std::string& topic, const Exchange& exchange) {
    try {
      return exchange();
    } catch (const std::exception& error) {
      throw PeerLost(fmt::format("exchanging {}: {}", topic, first_line(error)));
    }
  }

  std::string read(const std::string& key) {
    const WaitingScope waiting;
    const std::vector<std::uint8_t> bytes = store_->get(key);
    return {bytes.begin(), bytes.end()};
  }

  static std::string agreement_key(int rank) { return fmt::format("agreement/{}", rank); }

  /// Rank 0 serves the store: a rank that still starts would look for it until its own time is up. One that is never
  /// started must not hide why the others end.
  void await_late_ranks() {
    std::vector<std::string> keys;
    for (int other = 1; other < options_.place.world; ++other) keys.push_back(agreement_key(other));
    try {
      store_->wait(keys, std::min<std::chrono::milliseconds>(options_.timeout, kLateRanks));
    } catch (const std::exception&) {
      return;
    }
  }

  /// A mismatch of sizes inside a Gloo collective would abort the process; so what must be equal is compared before.
  void agree() {
    const int rank = options_.place.rank, world = options_.place.world;
    const std::string mine = fmt::format("{} ranks, {}", world, options_.agreement);
    try {
      store_->set(agreement_key(rank), bytes_of(mine));
      const std::string theirs = read(agreement_key(0));
      if (theirs != mine) {
        throw InputError(fmt::format(
            "is set up differently from rank 0 ({}; rank 0: {}); start all ranks with the same plan and flags", mine,
            theirs));
      }
      // All ranks leave together, so that a rank that differs is seen before anyone waits in a collective.
      for (int other = 1; other < world; ++other) {
        if (read(agreement_key(other)) == mine) continue;
        if (rank == 0) await_late_ranks();
        throw PeerLost(fmt::format("rank {} is set up differently from rank 0", other));
      }
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw PeerLost(fmt::format("not all {} ranks connected: {}", world, first_line(error)));
    }
  }

  /// Where this machine's name stands for loopback, the route to another machine's rank says what its address is.
  void find_own_address() {
    const RankPlace& place = options_.place;
    if (place.on_one_node) return;
    const auto names = environment_variables()("GLOO_SOCKET_IFNAME");
    if (names) interfaces_ = interfaces_named("GLOO_SOCKET_IFNAME", *names);
    address_ = names ? "" : source_address(place.master_address);
    const auto key = [](int rank) { return fmt::format("address/{}", rank); };
    guarded("addresses", [&] { store_->set(key(place.rank), bytes_of(address_)); });
    for (int other = place.world - 1; other >= 0 && is_loopback(address_); --other) {
      const std::string theirs = guarded("addresses", [&] { return read(key(other)); });
      if (!theirs.empty() && !is_loopback(theirs)) address_ = source_address(theirs);
    }
  }

  std::unique_ptr<Collectives> group(const std::string& name, int rank, int size) {
    if (size == 1) return local_collectives();
    const GroupPlace place{.name = name,
                           .rank = rank,
                           .size = size,
                           .timeout = options_.timeout,
                           .address = address_,
                           .interfaces = interfaces_,
                           .local_device = options_.place.local_rank};
    auto store = c10::make_intrusive<c10d::PrefixStore>(name, store_);
    auto made = options_.device == DeviceKind::cpu ? gloo_collectives(store, place) : nccl_collectives(store, place);
    return observed_collectives(std::move(made), name, options_.observer);
  }

  GroupOptions options_;
  StorePtr store_;
  std::string address_ = "127.0.0.1";    // Gloo talks over it,
  std::vector<std::string> interfaces_;  // or over these
  std::unique_ptr<Collectives> world_, shard_, replicate_, reshard_;
};

}  // namespace

void turn_off_flight_recorder() { setenv("TORCH_FR_BUFFER_SIZE", "0", 0); }

std::unique_ptr<ProcessGroups> connect(const GroupOptions& options) {
  if (options.meeting == nullptr) turn_off_flight_recorder();  // meet() has done so, and its watch has a thread
  if (options.place.world == 1) return std::make_unique<StoreGroups>(options, nullptr);
  return std::make_unique<StoreGroups>(options, options.ghosts ? ghost_store() : store_of(*options.meeting));
}

void spawn_ranks(int world, std::int64_t shard_ranks, const std::function<void(ProcessGroups&)>& body,
                 std::int64_t reshard_ranks, const std::function<std::string(int rank)>& agreement) {
  turn_off_flight_recorder();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::mutex mutex;
  std::exception_ptr first_error;
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(world));
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        GroupOptions options;
        options.place.rank = rank;
        options.place.world = world;
        options.shard_ranks = shard_ranks;
        options.reshard_ranks = reshard_ranks;
        options.timeout = std::chrono::seconds(60);
        if (agreement) options.agreement = agreement(rank);
        StoreGroups groups(options, store);
        body(groups);
        groups.world().barrier();
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (!first_error) first_error = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first_error) std::rethrow_exception(first_error);
}

}  // namespace vramfit
