#include "cli/rehearse/report/driver_record.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"
#include "base/process/process_record.h"
#include "base/text/suggest.h"
#include "cli/files.h"

namespace vramfit {
namespace {

namespace layout = process_record;
using layout::TextKind;

constexpr std::int64_t kMostRank = std::int64_t{1} << 40, kMostCards = 1 << 20;
constexpr std::size_t kMostWord = 256;

// Any process can write what it likes into the folder, so each number is checked. Sums of them don't overflow.
std::int64_t count(std::int64_t number, std::int64_t least = 0) {
  constexpr std::int64_t kMost = std::int64_t{1} << 56;
  if (number < least) throw InputError(fmt::format("holds {}, where at least {} is possible", number, least));
  if (number > kMost) throw InputError(fmt::format("holds {}, where at most {} is possible", number, kMost));
  return number;
}

/// The struct at `at`; what lies beyond the end of the file is missing.
template <typename Part>
Part part_at(const std::string& bytes, std::size_t at) {
  Part part;
  if (bytes.size() < sizeof part || at > bytes.size() - sizeof part) throw InputError("ends too early");
  std::memcpy(static_cast<void*>(&part), bytes.data() + at, sizeof part);
  return part;
}

template <std::size_t N>
std::string_view until_zero(const std::array<char, N>& text) {
  return {text.data(), std::min(N, std::string_view(text.data(), N).find('\0'))};
}

std::vector<std::string> words_of(const layout::Header& header) {
  std::vector<std::string> words;
  std::string_view rest(header.command.data(), header.command.size());
  while (!rest.empty() && rest[0] != '\0') {
    const std::string_view word = rest.substr(0, rest.find('\0'));
    words.push_back(replace_broken_utf8(word.substr(0, kMostWord)));
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
  }
  return words;
}

DriverCard card_of(const layout::Card& found) {
  if (found.number < 0 || found.number >= kMostCards) throw InputError(fmt::format("numbers a card {}", found.number));
  DriverCard card{.card = static_cast<int>(found.number),
                  .peak_used = {count(found.peak_used_bytes)},
                  .outside = {count(found.outside_at_peak_bytes)},
                  .managed = {count(found.peak_managed_bytes)},
                  .requested = {count(found.peak_requested_bytes)},
                  .allocated = {count(found.peak_allocated_bytes)},
                  .allocations = count(found.allocations),
                  .out_of_memory = count(found.out_of_memory_count),
                  .last_refused = found.is_last_refused != 0,
                  .failures = {}};
  const auto listed = std::min(card.out_of_memory, static_cast<std::int64_t>(found.failures.size()));
  for (std::size_t i = 0; i < static_cast<std::size_t>(listed); ++i) {
    card.failures.emplace_back(count(found.failures[i].asked_bytes), found.failures[i].free_bytes);
  }
  return card;
}

void add_text(ProcessRecord& record, const layout::Text& text) {
  std::string name = printable(until_zero(text.name), layout::kTextBytes);
  switch (text.kind) {
    case TextKind::uncertain_place:
      return record.uncertain.places.push_back(std::move(name));
    case TextKind::invented_place:
      return record.invented.places.push_back(std::move(name));
    case TextKind::ghost_place:
      return record.ghost_places.push_back(std::move(name));
    case TextKind::escape:
      return record.escapes.push_back(std::move(name));
    case TextKind::unsupported:
      return void(record.unsupported.emplace_back(std::move(name), count(text.count)));
    case TextKind::workspace:
      return record.workspaces.push_back({.what = std::move(name),
                                          .count = count(text.count),
                                          .most = {count(text.bytes)},
                                          .has_bound = count(text.assumptions, -1) >= 0,
                                          .is_kept = text.steers != 0});
    case TextKind::assumed:
      return record.assumed.push_back({.what = std::move(name),
                                       .steers = text.steers != 0,
                                       .assumptions = count(text.assumptions, -1),
                                       .count = count(text.count),
                                       .bytes = {count(text.bytes)}});
  }
  throw InputError(fmt::format("counts something of kind {}", static_cast<std::int64_t>(text.kind)));
}

/// Lists in the order of their names, which is the same in each run.
void sort_lists(ProcessRecord& record) {
  for (auto* list : {&record.uncertain.places, &record.invented.places, &record.ghost_places, &record.escapes}) {
    std::ranges::sort(*list);
  }
  std::ranges::sort(record.unsupported);
  std::ranges::sort(record.workspaces, {}, &UnknownWorkspace::what);
  std::ranges::sort(record.assumed, {}, [](const AssumedRead& read) { return std::pair(read.what, read.steers); });
}

ProcessRecord record_in(const std::string& bytes) {
  const auto header = part_at<layout::Header>(bytes, 0);
  if (header.magic != layout::kMagic) throw InputError("is not a record of a process");
  if (header.cards < 0 || header.cards > kMostCards) throw InputError(fmt::format("has {} cards", header.cards));
  const auto cards = static_cast<std::size_t>(header.cards);
  if (header.texts < 0 || header.texts > static_cast<std::int64_t>(layout::kMostTexts)) {
    throw InputError(fmt::format("has {} texts", header.texts));
  }
  ProcessRecord record;
  record.process = count(header.process);
  if (count(header.rank, -1) >= 0 && header.rank <= kMostRank) record.rank = header.rank;
  record.ended = header.ended != 0;
  record.command = words_of(header);
  record.uncertain = {count(header.uncertain_reads), {count(header.uncertain_bytes)}, {}};
  record.invented = {count(header.invented_reads), {count(header.invented_bytes)}, {}};
  record.ghost_answers = count(header.ghost_answers);
  for (std::size_t i = 0; i < cards; ++i) {
    const auto card = part_at<layout::Card>(bytes, sizeof header + i * sizeof(layout::Card));
    if (card.is_used != 0) record.cards.push_back(card_of(card));
  }
  const std::size_t texts = sizeof header + cards * sizeof(layout::Card);
  for (std::size_t i = 0; i < static_cast<std::size_t>(header.texts); ++i) {
    add_text(record, part_at<layout::Text>(bytes, texts + i * sizeof(layout::Text)));
  }
  std::ranges::sort(record.cards, {}, &DriverCard::card);
  sort_lists(record);
  return record;
}

}  // namespace

ProcessRecord read_driver_record(const std::string& path) {
  try {
    return record_in(read_file(path));
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", printable(path), error.what()));
  }
}

}  // namespace vramfit
