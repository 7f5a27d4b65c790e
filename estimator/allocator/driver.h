// What the caching allocator asks of a card: addresses and memory, and whether recorded events are complete.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "base/address_space.h"
#include "base/text/units.h"

namespace vramfit {

/// The driver as the allocator sees it. Addresses and sizes are in bytes.
class Driver {
 public:
  Driver() = default;
  Driver(const Driver&) = delete;
  Driver(Driver&&) = delete;
  Driver& operator=(const Driver&) = delete;
  Driver& operator=(Driver&&) = delete;
  virtual ~Driver() = default;

  /// What the card reports as its total memory.
  virtual std::int64_t total() const = 0;
  /// cudaMalloc: an address, or none when the card is full.
  virtual std::optional<std::int64_t> allocate(std::int64_t bytes) = 0;
  virtual void free(std::int64_t address, std::int64_t bytes) = 0;
  /// cuMemAddressReserve: addresses without memory behind them.
  virtual std::int64_t reserve(std::int64_t bytes) = 0;
  virtual void unreserve(std::int64_t address, std::int64_t bytes) = 0;
  /// cuMemCreate, `count` times: all pages or, when the card can't hold them, none.
  virtual bool create_pages(std::int64_t count, std::int64_t page) = 0;
  virtual void release_pages(std::int64_t count, std::int64_t page) = 0;

  /// cudaEventQuery of the `number`-th event (from 0) recorded on a stream. Asked in each stream's order. Complete
  /// unless a driver overrides this.
  virtual bool event_complete(int /*stream*/, std::int64_t /*number*/) { return true; }

  /// Whether it never says that the card is full.
  virtual bool is_unlimited() const { return false; }

  /// With equal states and equal blocks in place, a driver answers alike from there on.
  virtual std::uint64_t state() const { return 0; }
};

/// How a card chooses addresses.
struct Placement {
  AddressOrder order = AddressOrder::ascending;
  std::uint64_t seed = 0;  // of a shuffle; of card n of a node: address_seed(seed, n)
};

/// A card whose memory is counted. cudaMalloc answers as on a phantom card with the same total and placement.
class CardMemory : public Driver {
 public:
  /// `free_bytes`: what is there for this process; none: no limit.
  CardMemory(Bytes total, std::optional<Bytes> free_bytes, Placement placement);
  /// Without a limit: `total()` is 4 PiB, four times what a card may be given.
  explicit CardMemory(Placement placement);

  std::int64_t total() const override { return total_; }
  std::optional<std::int64_t> allocate(std::int64_t bytes) override;
  void free(std::int64_t address, std::int64_t bytes) override;
  /// Ranges lie above all memory, one after the other. Unlike blocks, their addresses are not reused.
  std::int64_t reserve(std::int64_t bytes) override;
  void unreserve(std::int64_t address, std::int64_t bytes) override;
  bool create_pages(std::int64_t count, std::int64_t page) override;
  void release_pages(std::int64_t count, std::int64_t page) override;
  bool is_unlimited() const override { return !left_; }
  std::uint64_t state() const override { return space_.state(); }

 protected:
  /// The address for memory that is available; none if no gap is large enough.
  virtual std::optional<std::int64_t> place(std::int64_t bytes);
  virtual void give_back(std::int64_t address, std::int64_t bytes);

 private:
  bool take(std::int64_t bytes);

  std::int64_t total_;
  std::optional<std::int64_t> left_;
  AddressSpace space_;
  std::int64_t reserved_end_;
};

/// A card that hands out the addresses that another one did: those of a rehearsal or a run.
class ListedCard : public CardMemory {
 public:
  ListedCard(Bytes total, std::optional<Bytes> free_bytes) : CardMemory(total, free_bytes, {}) {}
  /// The next address, of cudaMalloc or cuMemAddressReserve.
  void add(std::int64_t address) { addresses_.push_back(address); }
  std::size_t left() const { return addresses_.size(); }
  std::int64_t reserve(std::int64_t bytes) override { return *place(bytes); }

 protected:
  /// Throws FaultError when the list has no more.
  std::optional<std::int64_t> place(std::int64_t bytes) override;
  void give_back(std::int64_t address, std::int64_t bytes) override;

 private:
  std::deque<std::int64_t> addresses_;
};

}  // namespace vramfit
