#include "phantom/nccl/communicator.h"

#include <filesystem>

#include "phantom/core/memory.h"
#include "phantom/core/session.h"

namespace vramfit::phantom {

Communicator::Communicator(Place place, Others others, std::int64_t card_bytes)
    : place_(std::move(place)), others_(place_.ranks > 1 ? others : Others::none), card_bytes_(card_bytes) {
  if (card_bytes_ > 0 && charge_card(place_.card, card_bytes_) != Status::success) {
    card_bytes_ = 0;
    out_of_memory_ = true;
    return;
  }
  if (others_ != Others::processes) return;
  const std::filesystem::path folder = std::filesystem::path(session().folder) / ("nccl." + place_.id);
  try {
    mailbox_ = std::make_unique<Mailbox>(folder, place_.rank, place_.ranks);
  } catch (...) {
    charge_card(place_.card, -card_bytes_);
    throw;
  }
}

Communicator::~Communicator() {
  if (card_bytes_ > 0) charge_card(place_.card, -card_bytes_);
}

std::uint64_t Communicator::next_sent(int peer) {
  const std::lock_guard lock(mutex_);
  return sent_[peer]++;
}

std::uint64_t Communicator::next_received(int peer) {
  const std::lock_guard lock(mutex_);
  return received_[peer]++;
}

int Communicator::add_scale(ScaleOperator scale) {
  const std::lock_guard lock(mutex_);
  scales_.push_back(std::move(scale));
  return static_cast<int>(ncclNumOps) + static_cast<int>(scales_.size()) - 1;
}

std::optional<ScaleOperator> Communicator::scale(int operation) {
  const std::lock_guard lock(mutex_);
  const int index = operation - static_cast<int>(ncclNumOps);
  if (index < 0 || index >= static_cast<int>(scales_.size())) return std::nullopt;
  const ScaleOperator& found = scales_[static_cast<std::size_t>(index)];
  if (found.destroyed) return std::nullopt;
  return found;
}

bool Communicator::destroy_scale(int operation) {
  if (!scale(operation)) return false;
  const std::lock_guard lock(mutex_);
  scales_[static_cast<std::size_t>(operation - static_cast<int>(ncclNumOps))].destroyed = true;
  return true;
}

void Communicator::fail(ncclResult_t error) {
  ncclResult_t none = ncclSuccess;
  error_.compare_exchange_strong(none, error);
}

}  // namespace vramfit::phantom
