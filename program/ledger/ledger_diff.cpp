#include "program/ledger/ledger_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace vramfit {

namespace {

/// An allocation and the frees that follow it before the next one.
struct Entry {
  std::string allocation;          // "" before the first allocation
  std::vector<std::string> frees;  // sorted
};

std::string describe(const Ledger& ledger, const Event& event) {
  return fmt::format("{}{} bytes of \"{}\" in {} of step {}", event.bytes < 0 ? "-" : "+",
                     event.bytes < 0 ? -event.bytes : event.bytes, ledger.labels[static_cast<std::size_t>(event.label)],
                     phase_name(event.phase), event.step);
}

std::vector<Entry> entries_of(const Ledger& ledger) {
  std::vector<Entry> entries(1);
  for (const Event& event : ledger.events) {
    if (event.bytes < 0) {
      entries.back().frees.push_back(describe(ledger, event));
    } else {
      entries.push_back({describe(ledger, event), {}});
    }
  }
  for (Entry& entry : entries) std::ranges::sort(entry.frees);
  return entries;
}

/// The first free that only one side has, as text for the user.
std::string differing_free(const Entry& predicted, const Entry& measured) {
  std::vector<std::string> only;
  std::ranges::set_difference(predicted.frees, measured.frees, std::back_inserter(only));
  if (!only.empty()) return fmt::format("predicted {}, which was not measured", only.front());
  std::ranges::set_difference(measured.frees, predicted.frees, std::back_inserter(only));
  return fmt::format("measured {}, which was not predicted", only.empty() ? "nothing" : only.front());
}

}  // namespace

LedgerDifference compare_ledgers(const Ledger& predicted, const Ledger& measured) {
  LedgerDifference difference;
  const std::vector<Entry> left = entries_of(predicted);
  const std::vector<Entry> right = entries_of(measured);
  const auto fail = [&](std::string what) {
    difference.equal = false;
    difference.first = std::move(what);
    return difference;
  };
  for (std::size_t i = 0; i < std::max(left.size(), right.size()); ++i) {
    if (i >= left.size()) return fail(fmt::format("measured {}, which was not predicted", right[i].allocation));
    if (i >= right.size()) return fail(fmt::format("predicted {}, which was not measured", left[i].allocation));
    if (left[i].allocation != right[i].allocation) {
      return fail(fmt::format("event {}: predicted {}, measured {}", i, left[i].allocation, right[i].allocation));
    }
    if (left[i].frees != right[i].frees) {
      return fail(fmt::format("after {}: {}", left[i].allocation, differing_free(left[i], right[i])));
    }
    ++difference.compared;
  }
  return difference;
}

}  // namespace vramfit
