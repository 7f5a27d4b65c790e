#include "estimator/ledger.h"

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
  const auto id = static_cast<std::int64_t>(blocks_.size());
  blocks_.push_back({bytes.n, label, category, stream});
  ledger_.events.push_back({bytes.n, label, id, category, phase_, step_, stream});
  return id;
}

void LedgerWriter::free(std::int64_t id) {
  const Block& block = blocks_[static_cast<std::size_t>(id)];
  ledger_.events.push_back({-block.bytes, block.label, id, block.category, phase_, step_, block.stream});
}

void LedgerWriter::set_phase(Phase phase, int step) {
  phase_ = phase;
  step_ = step;
}

}  // namespace vramfit
