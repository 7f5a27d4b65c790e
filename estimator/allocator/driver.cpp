#include "estimator/allocator/driver.h"

#include "base/error.h"

namespace vramfit {

namespace {

// Four times the largest card that is read (1 PiB); its addresses, and 1,800 expandable ranges, fit into 63 bits.
constexpr Bytes kNoCard{std::int64_t{1} << 52};

}  // namespace

CardMemory::CardMemory(Bytes total, std::optional<Bytes> free_bytes, Placement placement)
    : total_(total.n),
      space_(placement.order, placement.seed, address_pages(total.n)),
      reserved_end_(address_pages(total.n) * kDriverPageBytes) {
  if (free_bytes) left_ = free_bytes->n;
}

CardMemory::CardMemory(Placement placement) : CardMemory(kNoCard, std::nullopt, placement) {}

bool CardMemory::take(std::int64_t bytes) {
  if (!left_) return true;
  if (bytes > *left_) return false;
  *left_ -= bytes;
  return true;
}

/// The allocator asks for nothing smaller than a page, so blocks never share one.
std::optional<std::int64_t> CardMemory::allocate(std::int64_t bytes) {
  const std::int64_t pages = ceil_div(bytes, kDriverPageBytes);
  if (!take(pages * kDriverPageBytes)) return std::nullopt;
  const std::optional<std::int64_t> address = place(bytes);
  if (!address && left_) *left_ += pages * kDriverPageBytes;
  return address;
}

void CardMemory::free(std::int64_t address, std::int64_t bytes) {
  if (left_) *left_ += ceil_div(bytes, kDriverPageBytes) * kDriverPageBytes;
  give_back(address, bytes);
}

std::int64_t CardMemory::reserve(std::int64_t bytes) {
  const std::int64_t address = reserved_end_;
  reserved_end_ = checked_add(reserved_end_, bytes);
  return address;
}

void CardMemory::unreserve(std::int64_t /*address*/, std::int64_t /*bytes*/) {}

bool CardMemory::create_pages(std::int64_t count, std::int64_t page) { return take(checked_mul(count, page)); }

void CardMemory::release_pages(std::int64_t count, std::int64_t page) {
  if (left_) *left_ += checked_mul(count, page);
}

std::optional<std::int64_t> CardMemory::place(std::int64_t bytes) {
  const std::optional<std::int64_t> page = space_.take(ceil_div(bytes, kDriverPageBytes));
  if (!page) return std::nullopt;
  return *page * kDriverPageBytes;
}

void CardMemory::give_back(std::int64_t address, std::int64_t bytes) {
  space_.give_back(address / kDriverPageBytes, ceil_div(bytes, kDriverPageBytes));
}

std::optional<std::int64_t> ListedCard::place(std::int64_t /*bytes*/) {
  if (addresses_.empty()) throw FaultError("the replay asks the card for one block more than the run did");
  const std::int64_t address = addresses_.front();
  addresses_.pop_front();
  return address;
}

void ListedCard::give_back(std::int64_t /*address*/, std::int64_t /*bytes*/) {}

}  // namespace vramfit
