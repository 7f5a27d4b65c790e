#include "program/ledger/ledger.h"

#include <algorithm>
#include <array>

namespace vramfit {

std::string_view category_name(Category category) {
  static constexpr std::array<std::string_view, kCategories> kNames{
      "parameters",      "unsharded_parameters", "gradients",   "optimizer_state", "activations",
      "logits_and_loss", "communication",        "temporaries", "workspace"};
  return kNames[static_cast<std::size_t>(category)];
}

std::string_view phase_name(Phase phase) {
  static constexpr std::array<std::string_view, kPhases> kNames{"load", "forward",   "loss",       "backward",
                                                                "clip", "optimizer", "evaluation", "checkpoint_save"};
  return kNames[static_cast<std::size_t>(phase)];
}

int LedgerWriter::label(const std::string& text) {
  const auto [entry, is_new] = label_numbers_.try_emplace(text, static_cast<int>(ledger_.labels.size()));
  if (is_new) ledger_.labels.push_back(text);
  return entry->second;
}

int LedgerWriter::add_label(std::string text) {
  ledger_.labels.push_back(std::move(text));
  return static_cast<int>(ledger_.labels.size()) - 1;
}

std::int64_t LedgerWriter::allocate(Bytes bytes, Category category, int label, Stream stream) {
  std::vector<Event>& events = ledger_.events;
  const std::size_t room = events.size() + live_ + 2;  // this one, and a free of every block that lives
  if (events.capacity() < room) events.reserve(std::max(room, 2 * events.capacity()));
  const auto id = static_cast<std::int64_t>(blocks_.size());
  blocks_.push_back({bytes.n, label, category, stream});
  events.push_back({.bytes = bytes.n,
                    .id = id,
                    .label = label,
                    .step = step_,
                    .category = category,
                    .phase = phase_,
                    .stream = stream});
  ++live_;
  return id;
}

void LedgerWriter::free(std::int64_t id) noexcept {
  const Block& block = blocks_[static_cast<std::size_t>(id)];
  --live_;
  ledger_.events.push_back({.bytes = -block.bytes,
                            .id = id,
                            .label = block.label,
                            .step = step_,
                            .category = block.category,
                            .phase = phase_,
                            .stream = block.stream});
}

void LedgerWriter::empty_cache() {
  ledger_.events.push_back({.label = label("cached memory"), .step = step_, .phase = phase_});
}

void LedgerWriter::begin_repeat(std::int64_t times) {
  open_repeats_.push_back(ledger_.repeats.size());
  ledger_.repeats.push_back({.begin = ledger_.events.size(), .end = ledger_.events.size(), .times = times});
}

void LedgerWriter::end_repeat() {
  ledger_.repeats[open_repeats_.back()].end = ledger_.events.size();
  open_repeats_.pop_back();
}

void LedgerWriter::set_phase(Phase phase, int step) {
  phase_ = phase;
  step_ = step;
}

}  // namespace vramfit
