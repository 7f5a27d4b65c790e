#include "estimator/bound/margins.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "estimator/bound/order_statistic.h"
#include "job/fields/job_field_names.h"

namespace vramfit {

namespace {

constexpr std::int64_t kMillion = 1'000'000;

/// With fewer cases of its own, a runtime has the margins of all: they would not even support 0.9.
constexpr std::size_t kEnough = 9;

/// Also of negative numbers, as ceil() does.
std::int64_t up_div(std::int64_t a, std::int64_t b) { return a / b + (a % b > 0 ? 1 : 0); }

/// What a case needed beyond its prediction: millionths of it; of what is outside the allocator, where predictions are
/// small and errors don't grow with them, bytes. Negative where it needed less.
std::int64_t excess(const Residual& residual, ResidualKind kind) {
  const std::int64_t more = (residual.observed - residual.predicted).n;
  if (kind == ResidualKind::outside) return more;
  return up_div(more * kMillion, residual.predicted.n);
}

/// Excesses in rising order, of nested sets of cases: those that are nearest to a job come first.
struct Excesses {
  std::array<std::array<std::vector<std::int64_t>, 2>, kRuntimes.size()> of_runtime;  // with QLoRA, and without
  std::array<std::vector<std::int64_t>, 2> of_method;
  std::vector<std::int64_t> all;
};

Excesses sorted(ResidualKind kind) {
  Excesses excesses;
  for (const Residual& residual : recorded_residuals(kind)) {
    const std::int64_t more = excess(residual, kind);
    excesses.of_runtime.at(static_cast<std::size_t>(residual.runtime)).at(residual.is_qlora ? 1 : 0).push_back(more);
    excesses.of_method.at(residual.is_qlora ? 1 : 0).push_back(more);
    excesses.all.push_back(more);
  }
  for (auto& methods : excesses.of_runtime) {
    for (std::vector<std::int64_t>& cases : methods) std::ranges::sort(cases);
  }
  for (std::vector<std::int64_t>& cases : excesses.of_method) std::ranges::sort(cases);
  std::ranges::sort(excesses.all);
  return excesses;
}

const Excesses& excesses_of(ResidualKind kind) {
  static const std::array<Excesses, kResidualKinds> all{sorted(ResidualKind::reserved), sorted(ResidualKind::rehearsed),
                                                        sorted(ResidualKind::outside)};
  return all.at(static_cast<std::size_t>(kind));
}

struct Chosen {
  std::int64_t excess = 0;
  Seen seen;
};

/// At least `floor`.
Chosen chosen_of(const std::vector<std::int64_t>& cases, Confidence confidence, std::int64_t floor) {
  const std::size_t rank = covering_rank(cases.size(), confidence).value();
  Chosen chosen{.excess = std::max(floor, cases[rank - 1]), .seen = {}};
  const auto within = std::ranges::upper_bound(cases, chosen.excess) - cases.begin();
  chosen.seen = {.cases = static_cast<std::int64_t>(cases.size()), .within = within, .of_runtime = false};
  return chosen;
}

bool supports(const std::vector<std::int64_t>& cases, Confidence confidence) {
  return cases.size() >= kEnough && covering_rank(cases.size(), confidence).has_value();
}

/// Of the nearest cases that are enough. Nearer ones that are too few still count: the margin is never below the
/// largest of them, so that it rises with the confidence where others take their place. Published peaks and processes
/// are not told apart by method: none is of QLoRA.
Chosen choose(ResidualKind kind, const Job& job, Confidence confidence) {
  const Excesses& excesses = excesses_of(kind);
  const std::size_t method = kind == ResidualKind::rehearsed && job.method == Method::qlora ? 1 : 0;
  const std::vector<std::int64_t>& own = excesses.of_runtime.at(static_cast<std::size_t>(job.runtime)).at(method);
  std::int64_t floor = 0;
  for (const std::vector<std::int64_t>* const cases : {&own, &excesses.of_method.at(method)}) {
    if (supports(*cases, confidence)) {
      Chosen chosen = chosen_of(*cases, confidence, floor);
      chosen.seen.of_runtime = cases == &own;
      return chosen;
    }
    if (!cases->empty()) floor = std::max(floor, cases->back());
  }
  return chosen_of(excesses.all, confidence, floor);
}

/// "none of 9 published peaks of this runtime"
std::string above_text(const Seen& seen, std::string_view cases) {
  const std::int64_t above = seen.cases - seen.within;
  return fmt::format("{} of {} {}{}", above == 0 ? "none" : std::to_string(above), seen.cases, cases,
                     seen.of_runtime ? " of this runtime" : "");
}

}  // namespace

Bytes share_of(Bytes bytes, std::int64_t per_million) {
  return Bytes{bytes.n / kMillion * per_million + up_div(bytes.n % kMillion * per_million, kMillion)};
}

Confidence most_supported() {
  Confidence most = kCertain;
  for (std::size_t i = 0; i < kResidualKinds; ++i) {
    most = std::min(most, most_confidence(excesses_of(static_cast<ResidualKind>(i)).all.size()));
  }
  return most;
}

void set_confidence(Cluster& cluster, std::string_view text) {
  try {
    const Confidence confidence = parse_confidence(text);
    if (cluster.is_cpu()) {
      throw InputError(fmt::format("{}: the bound of CPU ranks doesn't come from recorded cases", text));
    }
    if (confidence > most_supported()) {
      throw InputError(fmt::format("{}: the recorded cases support at most {} (docs/upper-bound.md)", text,
                                   confidence_text(most_supported())));
    }
    cluster.confidence = confidence;
  } catch (const InputError& error) {
    throw InputError(fmt::format("--confidence {}", error.what()));
  }
}

Margins margins_of(const Job& job, Confidence confidence) {
  if (!confidence.is_asked() || confidence > most_supported()) {
    throw InputError("--confidence: none that recorded cases support");
  }
  Margins margins;
  margins.confidence = confidence;
  const auto see = [&](ResidualKind kind) {
    const Chosen chosen = choose(kind, job, confidence);
    margins.seen.at(static_cast<std::size_t>(kind)) = chosen.seen;
    return chosen.excess;
  };
  margins.outside = Bytes{see(ResidualKind::outside)};
  margins.reserved_per_million = see(ResidualKind::reserved);
  const bool is_own = margins.seen.at(static_cast<std::size_t>(ResidualKind::reserved)).of_runtime;
  // What others' cases needed on GPUs comes on top of what rehearsals needed.
  if (!is_own) {
    const std::int64_t rehearsed = see(ResidualKind::rehearsed);
    margins.reserved_per_million += rehearsed + up_div(margins.reserved_per_million * rehearsed, kMillion);
  }
  return margins;
}

std::string margins_text(const Margins& margins) {
  const auto above = [&](ResidualKind kind, std::string_view cases) {
    return above_text(margins.seen.at(static_cast<std::size_t>(kind)), cases);
  };
  const bool has_rehearsals = margins.seen.at(static_cast<std::size_t>(ResidualKind::rehearsed)).cases > 0;
  return fmt::format(
      "upper bound: {:.2f} % more reserved memory and {} more outside the allocator; {}{} and {} needed "
      "more (confidence {}; docs/upper-bound.md)",
      static_cast<double>(margins.reserved_per_million) / 1e4, format_gib(margins.outside),
      above(ResidualKind::reserved, "published peaks"),
      has_rehearsals ? ", " + above(ResidualKind::rehearsed, "rehearsals") : "",
      above(ResidualKind::outside, "processes on GPUs"), confidence_text(margins.confidence));
}

}  // namespace vramfit
