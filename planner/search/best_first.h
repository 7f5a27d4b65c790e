// Walks the space best first: bounds decide whole groups of configurations, and only those that may be the next best
// are looked at one by one.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <queue>
#include <set>
#include <utility>
#include <vector>

#include "planner/search/changes.h"
#include "planner/search/search.h"

namespace vramfit {

enum class BestBy {
  speed,  // the fastest first; what the bound of memory rules out is left out
  need    // the smallest bound of need first; none is left out
};

class BestFirst {
 public:
  /// Over all bases; of equal configurations the earlier base's come first, then the order of the rows. The evaluator,
  /// the request and the counts, to which is added, outlive this object.
  BestFirst(Evaluator& evaluator, const PlanRequest& request, const std::vector<Change>& bases, BestBy by,
            SearchCounts& counts);

  /// The next configuration, if there is one whose need may be `most_total` or less; the rest is dropped, so a later
  /// call may ask for less, not for more. By speed: with its time, and none from the first on that is not faster than
  /// `above`. By need, only what is walked through has a time.
  std::optional<Option> next(Bytes most_total, double above = -1);

  /// Configurations under a runtime that isn't bounded which need more than the card has, however their blocks are
  /// placed, or more host memory than a node has: by speed they are passed over, without times.
  const std::vector<Option>& passed_over() const { return passed_over_; }

  /// From now on, by speed, configurations are passed over whose first step shows that they don't fit
  /// (Evaluator::look_early).
  void pass_over_misfits() { passes_over_misfits_ = true; }
  /// By need: from now on those are passed over whose first step shows that they don't need less than `total`
  /// (Evaluator::look_early), or whose walk does (Evaluator::walks_beyond).
  void pass_over_from(Bytes total) { passed_over_from_ = total; }
  /// Those that were, by speed, with bounds of their speed and of their need.
  std::vector<Option> misfits() const;
  /// From now on none is passed over, and those that were come again, but for those that come before `chosen`: they
  /// would have been tried.
  void bring_back_misfits(const Option& chosen);

  /// To be called of the last configuration: it comes again with the other choices of rows that change fragments. By
  /// speed, only if it doesn't fit and its requests alone would.
  void retry_last(const Attempt& attempt);

  /// From now on only the first is looked at of those that differ in fine rows alone and of which the bound of memory
  /// says the same: they fail alike by the allocator's fragments, or don't.
  void look_at_one_of_alike() { one_of_alike_ = true; }

 private:
  struct Node {
    Job job;
    BoundParts parts;
    StepTime time;
    std::optional<Bytes> requested = {}, reserved = {};  // as an option has them, of a configuration that was looked at
    std::weak_ptr<const program::Program> program = {};  // likewise
    Bytes least;                                         // of the total of each configuration in the group
    double most_tokens_per_second = 0;                   // likewise
    std::size_t base = 0, level = 0;                     // the first that is open
    Place place;
    std::vector<Job> others = {};  // by need: with the choices of the row that changes fragments that weren't tried
    int walked = 0;                // how many of its bounds by walks with few blocks, and by none, are in it
    std::int64_t rows = 2;         // by need: of the next one by fewer rows
    bool has_all_bounds = false;   // by need: of these
    bool is_exact = false;         // a configuration of which all is known that next() says
    bool is_misfit = false;        // it was passed over as one, and came again
  };
  struct Entry {
    double value = 0;  // the greatest is next
    Place place;
    std::size_t node = 0;
  };
  struct ComesLater {
    bool operator()(const Entry& a, const Entry& b) const;
  };

  /// Bounds a combination of changes as a whole; whether it may have a job that the search wants.
  bool may_fit(Node& root, const PlanRequest& request);
  /// Counts configurations where they can be counted as one group, at the latest when that is dropped.
  void add(Node node);
  void push(Node node);
  void expand(const Node& node);
  /// Whether walks with few blocks show that it may not be the next, so that it has to wait for its turn again.
  bool may_wait(Node& node);
  Bytes next_bound(Node& node);
  bool may_wait_by_need(Node& node);
  void leave_few_fragments(Node& node) const;
  void look_at(Node& node, Bytes most_total);
  Option option_of(Node node) const;
  /// With fine rows left out.
  Place coarse_place(const Node& node) const;
  bool is_ruled_out(const Node& node) const;
  /// Whether walks with few blocks show that the configuration isn't wanted; one that may be shown later is put down.
  bool pass_over(const Node& node, Bytes most_total);
  bool pass_over_misfit(Node& node);
  bool pass_over_in_walk(const Node& node);
  /// By need; the other choices of rows that change fragments come again.
  bool pass_over_larger(const Node& node);
  /// Whether it was passed over, and would have been tried before the chosen one.
  bool was_tried(const Node& node) const;
  Node take(std::size_t number);

  Evaluator& evaluator_;
  BestBy by_;
  SearchCounts& counts_;
  std::vector<std::vector<std::string>> needs_;  // by base
  std::deque<Space> spaces_;                     // by base
  std::deque<Node> nodes_;
  std::vector<std::size_t> free_;  // numbers of nodes
  Node last_;                      // that next() returned
  std::vector<Option> passed_over_;
  bool one_of_alike_ = false, passes_over_misfits_ = false;
  Bytes passed_over_from_ = kNoLimit;
  std::vector<Node> misfits_;
  Entry chosen_;                                 // once misfits were brought back
  std::set<std::pair<Bytes, Place>> looked_at_;  // then: bound of memory and coarse_place()
  std::priority_queue<Entry, std::vector<Entry>, ComesLater> queue_;
};

/// A configuration that fits, and what its worst rank needs.
struct Fitting {
  Option option;
  RankEstimate rank;
};

/// The first configuration that the queue gives, fits, and is faster than `above`, if there is one.
std::optional<Fitting> first_that_fits(BestFirst& queue, Evaluator& evaluator, double above);

/// Whether one of the configurations that need least fits; false if the first few don't, which says nothing of others.
bool surely_fits(Evaluator& evaluator, const PlanRequest& request, const std::vector<Change>& bases,
                 SearchCounts& counts);

/// The fastest job of a group of bases that fits and is faster than `above`, if one is found: of those that are alike
/// few are looked at. For what is said beside a plan, or where there is none. Of the counts only bounds grow: a plan
/// has no choice of these configurations.
std::optional<Candidate> fastest_that_fits(Evaluator& evaluator, const PlanRequest& request,
                                           const std::vector<Change>& bases, double above, SearchCounts& counts);

}  // namespace vramfit
