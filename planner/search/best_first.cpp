#include "planner/search/best_first.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "job/allocator/allocator_settings.h"
#include "planner/search/least_choice.h"

namespace vramfit {

namespace {

/// A bound that leaves less than one part in so many of the card's memory is close.
constexpr std::int64_t kClose = 8;
constexpr int kFewTries = 4;
/// Of the numbers of rows that bound larger micro-batches, how much larger each is than the one before.
constexpr std::int64_t kRowsGrow = 4;

}  // namespace

Place BestFirst::coarse_place(const Node& node) const {
  Place place = node.place;
  const Space& space = spaces_[node.base];
  for (std::size_t level = 0; level < space.levels(); ++level) {
    if (space.row(level).is_fine) place.choices[level + 1] = 0;
  }
  return place;
}

bool BestFirst::ComesLater::operator()(const Entry& a, const Entry& b) const {
  return std::tie(a.value, b.place) < std::tie(b.value, a.place);
}

BestFirst::BestFirst(Evaluator& evaluator, const PlanRequest& request, const std::vector<Change>& bases, BestBy by,
                     SearchCounts& counts)
    : evaluator_(evaluator), by_(by), counts_(counts) {
  counts_.combinations += static_cast<std::int64_t>(bases.size());
  for (const Change& base : bases) {
    needs_.push_back(base.needs);
    const Space& space = spaces_.emplace_back(request, base.job);
    if (space.levels() > Place::kMostLevels) throw std::logic_error("a search has more rows than places have levels");
    Node root{.job = space.base(), .parts = {}, .time = {}, .least = {}, .base = spaces_.size() - 1, .place = {}};
    root.most_tokens_per_second = std::numeric_limits<double>::infinity();
    root.place.choices[0] = static_cast<std::uint16_t>(root.base);
    if (!base.needs.empty() && !may_fit(root, request)) continue;
    if (space.fragments_from() > 0 || has_rules(root.job, request.cluster)) add(std::move(root));
  }
}

bool BestFirst::may_fit(Node& root, const PlanRequest& request) {
  const std::optional<LeastOfAll> least = least_of_all(root.job, request, evaluator_);
  if (!least) return true;
  ++counts_.bounds;
  root.least = least->total;
  if (by_ == BestBy::need || !least->is_ruled_out) return true;
  ++counts_.combinations_ruled_out;
  return false;
}

void BestFirst::add(Node node) {
  Space& space = spaces_[node.base];
  if (node.level == space.simple_from()) counts_.configurations += space.count(node.job, node.level);
  if (space.is_bounded(node.level)) {
    const OpenChoices open = space.open_from(node.level);
    // Simple rows leave the parts as they are.
    if (node.parts.graph == nullptr || !space.is_simple(node.level - 1)) {
      node.parts = evaluator_.parts_of(node.job, open);
    }
    ++counts_.bounds;
    node.least = std::max(node.least, evaluator_.least_total(node.parts, node.job, open));
    if (is_ruled_out(node)) {
      const std::int64_t leaves = space.count(node.job, node.level);
      if (node.level < space.simple_from()) counts_.configurations += leaves;
      counts_.ruled_out += leaves;
      return;
    }
    node.most_tokens_per_second =
        std::min(node.most_tokens_per_second, evaluator_.most_tokens_per_second(node.parts, node.job, open));
  }
  push(std::move(node));
}

bool BestFirst::is_ruled_out(const Node& node) const {
  const OpenChoices open = spaces_[node.base].open_from(node.level);
  return by_ == BestBy::speed && evaluator_.is_ruled_out(node.parts, node.job, open, node.least);
}

void BestFirst::push(Node node) {
  const double value = by_ == BestBy::speed ? node.most_tokens_per_second : -static_cast<double>(node.least.n);
  const Place place = node.place;
  std::size_t number = nodes_.size();
  if (free_.empty()) {
    nodes_.push_back(std::move(node));
  } else {
    number = free_.back();
    free_.pop_back();
    nodes_[number] = std::move(node);
  }
  queue_.push({value, place, number});
}

BestFirst::Node BestFirst::take(std::size_t number) {
  free_.push_back(number);
  return std::move(nodes_[number]);
}

void BestFirst::expand(const Node& node) {
  std::vector<Job> choices = spaces_[node.base].choices(node.job, node.level);
  for (std::size_t c = 0; c < choices.size(); ++c) {
    Node child{.job = std::move(choices[c]),
               .parts = node.parts,
               .time = {},
               .least = node.least,
               .most_tokens_per_second = node.most_tokens_per_second,
               .base = node.base,
               .level = node.level + 1,
               .place = node.place};
    child.place.choices[child.level] = static_cast<std::uint16_t>(c);
    add(std::move(child));
  }
}

bool BestFirst::pass_over(const Node& node, Bytes most_total) {
  if (by_ == BestBy::need || node.job.runtime == Runtime::vramfit) return false;
  if (evaluator_.lacks_host_memory(node.job)) {
    passed_over_.push_back(option_of(node));
    ++counts_.ruled_out;
    return true;
  }
  const auto has_room = [&](const LeastOfWalk& least) {
    return least.requested <= most_total && !evaluator_.is_too_much(node.job, least.reserved);
  };
  const Bytes certain = evaluator_.least_without_walk(node.job);
  LeastOfWalk least{.requested = certain, .reserved = certain};
  if (has_room(least)) least = evaluator_.least_memory_at_any_batch(node.job);
  for (std::int64_t rows = 2; has_room(least) && 2 * rows <= node.job.micro_batch; rows *= kRowsGrow) {
    least = evaluator_.least_memory_at_twice_the_rows(node.job, rows);
  }
  const bool is_too_large = has_room(least) && evaluator_.walks_too_far_alone(node.job);
  if (has_room(least) && !is_too_large) least = evaluator_.least_memory(node.job);
  const auto is_close = [&] {  // has room, so that it is no more than the card's memory
    return kClose * (least.reserved + evaluator_.outside(node.job)) > (kClose - 1) * evaluator_.capacity();
  };
  if (has_room(least) && !is_too_large && is_close()) least = evaluator_.least_memory_of_one_row(node.job);
  if (has_room(least) && !is_too_large) return false;
  if (is_too_large || evaluator_.is_too_much(node.job, least.reserved)) {  // with any allocator
    passed_over_.push_back(option_of(node));
    ++counts_.ruled_out;
  }
  return true;
}

/// One that comes again with other choices of fragments is left to its attempt.
bool BestFirst::pass_over_misfit(Node& node) {
  if (!passes_over_misfits_ || by_ == BestBy::need) return false;
  const Space& space = spaces_[node.base];
  if (node.level < space.levels() && space.choices(node.job, node.level).size() > 1) return false;
  const EarlyLook look = evaluator_.look_early(node.job);
  if (!look.is_too_much) return false;
  node.least = std::max(node.least, look.least_total);
  if (is_ruled_out(node)) {
    ++counts_.ruled_out;
  } else {
    misfits_.push_back(std::move(node));
  }
  return true;
}

/// What its walk would say of its speed, it says later if that is asked for.
bool BestFirst::pass_over_in_walk(const Node& node) {
  if (by_ == BestBy::need || !evaluator_.walks_too_far(node.job)) return false;
  passed_over_.push_back(option_of(node));
  ++counts_.ruled_out;
  return true;
}

bool BestFirst::pass_over_larger(const Node& node) {
  if (passed_over_from_ == kNoLimit) return false;
  const EarlyLook look = evaluator_.look_early(node.job, passed_over_from_);
  if (!look.is_too_much && !evaluator_.walks_beyond(node.job, passed_over_from_)) return false;
  last_ = node;
  last_.least = std::max(node.least, look.least_total);
  retry_last({});
  return true;
}

std::vector<Option> BestFirst::misfits() const {
  std::vector<Option> options;
  for (const Node& node : misfits_) options.push_back(option_of(node));
  return options;
}

void BestFirst::bring_back_misfits(const Option& chosen) {
  passes_over_misfits_ = false;
  chosen_ = {.value = chosen.tokens_per_second, .place = chosen.place};
  for (Node& node : misfits_) {
    node.is_misfit = true;
    push(std::move(node));
  }
  misfits_.clear();
}

bool BestFirst::was_tried(const Node& node) const {
  return node.is_misfit && ComesLater()(chosen_, {.value = node.most_tokens_per_second, .place = node.place});
}

/// The next bound of what is reserved for a node's job, each from walks that serve fewer jobs than the one before.
Bytes BestFirst::next_bound(Node& node) {
  ++node.walked;
  if (node.walked == 1) return evaluator_.least_without_walk(node.job);
  if (node.walked == 2) return evaluator_.least_memory_at_any_batch(node.job).reserved;
  if (2 * node.rows <= node.job.micro_batch) {
    const std::int64_t rows = std::exchange(node.rows, node.rows * kRowsGrow);
    return evaluator_.least_memory_at_twice_the_rows(node.job, rows).reserved;
  }
  node.has_all_bounds = true;
  return evaluator_.least_memory(node.job).reserved;
}

bool BestFirst::may_wait_by_need(Node& node) {
  while (!node.has_all_bounds) {
    const Bytes least = next_bound(node) + evaluator_.outside(node.job);
    if (least <= node.least) continue;
    node.least = least;
    return true;
  }
  return false;
}

bool BestFirst::may_wait(Node& node) {
  if (node.job.runtime == Runtime::vramfit) return false;
  if (by_ == BestBy::need) return may_wait_by_need(node);
  if (node.walked > 0) return false;
  node.walked = 1;
  const double most = evaluator_.most_tokens_per_second(node.job);
  if (most >= node.most_tokens_per_second) return false;
  node.most_tokens_per_second = most;
  return true;
}

/// What its program requests, and by speed its time, instead of bounds.
void BestFirst::look_at(Node& node, Bytes most_total) {
  const auto look = [&] {
    if (by_ == BestBy::need) return evaluator_.requested(node.job);
    return node.job.runtime == Runtime::vramfit
               ? evaluator_.timed_if_wanted(node.job, node.parts, node.least, most_total)
               : evaluator_.timed(node.job);
  };
  const Option timed = look();
  node.time = timed.time;
  node.requested = timed.requested;
  node.reserved = timed.reserved;
  node.program = timed.program;
  node.most_tokens_per_second = timed.tokens_per_second;
  node.least = std::max(node.least, timed.least_total);
  node.is_exact = true;
}

/// By need: with PyTorch's runtimes, whose choices share one program, the last choice comes first, as it leaves the
/// fewest fragments; with the engine, the first.
void BestFirst::leave_few_fragments(Node& node) const {
  const Space& space = spaces_[node.base];
  if (by_ == BestBy::speed || node.level == space.levels()) return;
  std::vector<Job> jobs = space.choices(node.job, node.level);
  if (jobs.size() < 2) return;
  if (node.job.runtime != Runtime::vramfit) std::ranges::reverse(jobs);
  node.job = std::move(jobs.front());
  jobs.erase(jobs.begin());
  node.others = std::move(jobs);
}

void BestFirst::retry_last(const Attempt& attempt) {
  const Space& space = spaces_[last_.base];
  if (last_.level == space.levels() || (by_ == BestBy::speed && !attempt.requests_fit)) return;
  Node tried = last_;
  std::vector<Job> jobs = std::move(tried.others);
  if (by_ == BestBy::speed) {
    jobs = space.choices(tried.job, tried.level);
    if (!jobs.empty()) jobs.erase(jobs.begin());  // that was tried
  }
  tried.others.clear();
  ++tried.level;
  std::uint16_t choice = 1;
  for (Job& job : jobs) {
    Node other = tried;
    if (puts_gradients_first(job.allocator)) other.is_exact = false;  // its program is another one
    other.job = std::move(job);
    other.place.choices[other.level] = choice++;
    push(std::move(other));
  }
}

Option BestFirst::option_of(Node node) const {
  return {.job = std::move(node.job),
          .time = node.time,
          .tokens_per_second = node.most_tokens_per_second,
          .needs = needs_[node.base],
          .least_total = node.least,
          .requested = node.requested,
          .reserved = node.reserved,
          .program = std::move(node.program),
          .place = node.place};
}

std::optional<Option> BestFirst::next(Bytes most_total, double above) {
  while (!queue_.empty()) {
    const Entry entry = queue_.top();
    if (by_ == BestBy::speed && entry.value <= above) return std::nullopt;
    queue_.pop();
    Node node = take(entry.node);
    if (node.least > most_total) continue;
    if (node.level < spaces_[node.base].fragments_from()) {
      expand(node);
      continue;
    }
    if (node.is_exact) return option_of(last_ = std::move(node));
    const bool is_new = one_of_alike_ && node.walked == 0 && node.least > Bytes{};  // not one that waited for its turn
    if (is_new && !looked_at_.emplace(node.least, coarse_place(node)).second) continue;
    if (pass_over(node, most_total)) continue;
    if (may_wait(node)) {
      push(std::move(node));
      continue;
    }
    if (pass_over_misfit(node) || pass_over_in_walk(node)) continue;
    leave_few_fragments(node);
    if (pass_over_larger(node)) continue;
    look_at(node, most_total);
    if (is_ruled_out(node)) {
      ++counts_.ruled_out;
    } else if (node.least > most_total || was_tried(node)) {
      continue;
    } else if (by_ == BestBy::speed) {
      push(std::move(node));
    } else if (node.least <= most_total) {
      return option_of(last_ = std::move(node));  // thousands may have the same bound: the first shall lower the limit
    }
  }
  return std::nullopt;
}

std::optional<Fitting> first_that_fits(BestFirst& queue, Evaluator& evaluator, double above) {
  queue.pass_over_misfits();
  while (const std::optional<Option> option = queue.next(kNoLimit, above)) {
    const Attempt attempt = evaluator.attempt_to_fit(*option);
    if (attempt.fits) return Fitting{.option = *option, .rank = *attempt.rank};
    queue.retry_last(attempt);
  }
  return std::nullopt;
}

bool surely_fits(Evaluator& evaluator, const PlanRequest& request, const std::vector<Change>& bases,
                 SearchCounts& counts) {
  SearchCounts others;
  BestFirst queue(evaluator, request, bases, BestBy::need, others);
  queue.look_at_one_of_alike();
  bool fits = false;
  for (int tries = 0; tries < kFewTries && !fits; ++tries) {
    const std::optional<Option> option = queue.next(evaluator.capacity());
    if (!option) break;
    fits = evaluator.attempt_to_fit(*option).fits;
  }
  counts.bounds += others.bounds;
  return fits;
}

std::optional<Candidate> fastest_that_fits(Evaluator& evaluator, const PlanRequest& request,
                                           const std::vector<Change>& bases, double above, SearchCounts& counts) {
  SearchCounts others;
  BestFirst queue(evaluator, request, bases, BestBy::speed, others);
  queue.look_at_one_of_alike();
  const std::optional<Fitting> found = first_that_fits(queue, evaluator, above);
  counts.bounds += others.bounds;
  return found ? std::optional(evaluator.candidate(found->option, found->rank)) : std::nullopt;
}

}  // namespace vramfit
