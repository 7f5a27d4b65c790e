// The passes as program/schedules/vramfit.cpp orders them. What isn't certain counts as early as it may be: gathers of
// units that several segments use, and of all units where only the most that is gathered ahead is known.
#include "estimator/time/least_micro_batch.h"

#include <algorithm>
#include <utility>

namespace vramfit {

namespace {

class Streams {
 public:
  Streams(const std::vector<SegmentTicks>& segments, const std::vector<SegmentUnits>& units, const PassOrder& order,
          Reductions reductions, double host)
      : segments_(segments),
        units_(units),
        order_(order),
        reductions_(reductions),
        ready_(segments.size()),
        back_(segments.size()),
        host_(order.follows_host ? host : 0) {}

  MicroBatchTicks run() {
    MicroBatchTicks ticks;
    for (std::size_t s = 0; s < segments_.size(); ++s) forward(s);
    next_ = segments_.size();
    ahead_ = 0;
    for (std::size_t s = segments_.size(); s-- > 0 && segments_[s].has_backward;) {
      backward(s);
      if (s + 1 == segments_.size()) ticks.top_backward = compute_;
    }
    finish();
    if (!segments_.empty() && order_.knows_finish) land((units_.front().*reductions_).last_landing);
    ticks.all = compute_;
    ticks.host = host_;
    return ticks;
  }

 private:
  void run(const Kernels& kernels) {
    compute_ += kernels.compute;
    if (!order_.follows_host) return;
    compute_ = std::max(compute_, host_ + kernels.launched);
    host_ += kernels.host;
  }
  /// What runs here at the latest. It may run while the host launches what is before it here, and then delays nothing.
  void run_earlier(const Kernels& kernels) {
    if (order_.follows_host) {
      host_ += kernels.host;
    } else {
      compute_ += kernels.compute;
    }
  }
  /// What isn't run by the compute stream: it begins now at the earliest.
  double launch(double launches) {
    if (!order_.follows_host) return compute_;
    host_ += launches;
    return std::max(compute_, host_);
  }

  /// Begins to gather a segment's units, of several not one behind the other. `is_certain`: no sooner than now.
  void gather(std::size_t s, const SegmentUnits::Gather& what, bool is_certain, double& collectives) {
    const bool is_exact = order_.is_exact && is_certain;
    double copied = compute_, begin = compute_;
    if (is_exact) {
      const double before = launch(0);
      run(what.copies);
      copied = units_[s].has_one ? launch(0) : before;
      const double launched = launch(what.launches);
      begin = units_[s].has_one ? launched : before;
    }
    ready_[s] = {.time = 0, .before = is_exact ? nullptr : &what};
    if (what.arrivals > 0) {
      ready_[s].time = arrivals_ = std::max(arrivals_, copied) + what.arrivals;
      if (units_[s].has_one && is_certain) begin = std::max(begin, arrivals_);
    }
    if (what.collectives == 0) return;
    collectives = std::max(collectives, begin) + what.collectives;
    ready_[s].time = std::max(ready_[s].time, collectives);
  }
  void wait(std::size_t s) {
    if (const SegmentUnits::Gather* const before = std::exchange(ready_[s].before, nullptr)) {
      run_earlier(before->copies);
      launch(before->launches);
    }
    compute_ = std::max(compute_, ready_[s].time);
  }

  void forward(std::size_t s) {
    if (next_ <= s) {
      gather_forward();
    } else if (units_[s].begins_unit) {
      --ahead_;
    }
    wait(s);
    while (next_ < segments_.size() && (ahead_ < order_.forward_ahead || !units_[next_].begins_unit)) {
      if (units_[next_].begins_unit) ++ahead_;
      gather_forward();
    }
    run(segments_[s].forward);
    leave(segments_[s]);
    run(units_[s].slices);
  }
  /// Activations leave once those of the segment before have.
  void leave(const SegmentTicks& segment) {
    compute_ = std::max(compute_, left_);
    if (segment.leaving > 0) left_ = compute_ + segment.leaving;
  }
  void gather_forward() {
    gather(next_, units_[next_].gather, units_[next_].begins_unit, collectives_);
    ++next_;
  }

  void backward(std::size_t s) {
    if (next_ > s) {
      gather_backward();
    } else if (is_read(s)) {
      --ahead_;
    }
    wait(s);
    if (order_.is_before_recompute || segments_[s].recompute.compute == 0) gather_ahead();
    bring_back(s);
    if (segments_[s].recompute.compute > 0) {
      run(segments_[s].recompute);
      if (order_.finishes_early) finish();
    }
    gather_ahead();
    run(segments_[s].backward);
    finish();
    reduce(s);
  }
  /// Activations are back, and those of the segment below are on their way.
  void bring_back(std::size_t s) {
    fetch(s);
    compute_ = std::max(compute_, back_[s]);
    if (s > 0) fetch(s - 1);
  }
  void fetch(std::size_t s) {
    if (segments_[s].leaving == 0 || back_[s] > 0) return;
    double& stream = order_.knows_copies ? arrivals_ : returned_;
    back_[s] = stream = std::max(stream, compute_) + segments_[s].leaving;
  }
  bool is_read(std::size_t s) const { return units_[s].ends_unit && units_[s].reads_in_backward; }
  void gather_ahead() {
    while (next_ > 0 && segments_[next_ - 1].has_backward && (ahead_ < order_.backward_ahead || !is_read(next_ - 1))) {
      if (is_read(next_ - 1)) ++ahead_;
      gather_backward();
    }
  }
  void gather_backward() {
    --next_;
    const bool is_certain = units_[next_].ends_unit;
    double& collectives = is_certain ? collectives_ : early_;  // which may come behind reductions: they don't wait
    gather(next_, units_[next_].regather, is_certain, order_.has_groups ? of_groups_ : collectives);
  }

  void reduce(std::size_t s) {
    reducing_ = &(units_[s].*reductions_);
    is_one_ = units_[s].has_one;
    if (is_one_) run(reducing_->pieces);
    const double begin = is_one_ ? launch(reducing_->launches) : compute_;
    reduced_ = 0;
    if (reducing_->collectives > 0) {
      reduced_ = collectives_ = std::max(collectives_, begin) + reducing_->collectives;
    }
    if (!is_one_) {
      run(reducing_->pieces);
      launch(reducing_->launches);
    }
    if (order_.finishes_at_once) finish();
  }
  /// Of several units, the sums of one run beside the reduction of the next.
  void finish() {
    if (reducing_ == nullptr) return;
    const bool leaves = order_.knows_finish && reducing_->leaving > 0;
    if (leaves && is_one_) land(reducing_->landing);
    const double begin = compute_;
    if (is_one_) compute_ = std::max(compute_, reduced_ - reducing_->behind);
    order_.knows_finish ? run(reducing_->sums) : run_earlier(reducing_->sums);
    compute_ = std::max(compute_, reduced_);
    if (leaves) leave(begin);
    launch(reducing_->launches_behind);
    reducing_ = nullptr;
  }
  /// What left before is there, and the host has added it up. What it launches comes behind that.
  void land(double adding) {
    compute_ = std::max(compute_, landed_);
    if (adding > 0) add_on_host(landed_, adding);
  }
  void add_on_host(double landed, double adding) {
    host_ = std::max(host_, landed) + adding;
    compute_ = std::max(compute_, host_);
  }
  /// Of several units, one lands while the next one's sums run, which began at `begin`.
  void leave(double begin) {
    const double landed = landed_;
    landed_ = std::max(landed_, is_one_ ? compute_ : begin) + reducing_->leaving;
    if (is_one_) return;
    compute_ = std::max(compute_, landed);
    if (reducing_->landing > 0) add_on_host(landed, reducing_->landing);
  }

  struct Ready {
    double time = 0;
    const SegmentUnits::Gather* before = nullptr;  // what of it comes before at some time: all but its time
  };

  const std::vector<SegmentTicks>& segments_;
  const std::vector<SegmentUnits>& units_;
  const PassOrder& order_;
  Reductions reductions_;
  std::vector<Ready> ready_;  // by segment: its units are gathered
  std::size_t next_ = 0;      // to be gathered next; in backward, gathered last
  std::int64_t ahead_ = 0;    // units that are gathered before their passes, of those that are a segment's or a group's
  double compute_ = 0, collectives_ = 0, early_ = 0, of_groups_ = 0, arrivals_ = 0;
  std::vector<double> back_;        // by segment: its activations are; 0: they haven't been fetched
  double left_ = 0, returned_ = 0;  // until the last activations have left, and until the last ones are back
  double landed_ = 0;               // until the last gradients that left are in host memory
  double host_;                     // until the host has launched and added up what it was given
  const SegmentUnits::Reduction* reducing_ = nullptr;
  bool is_one_ = false;
  double reduced_ = 0;
};

}  // namespace

MicroBatchTicks least_micro_batch(const std::vector<SegmentTicks>& segments, const std::vector<SegmentUnits>& units,
                                  const PassOrder& order, Reductions reductions, double host) {
  return Streams(segments, units, order, reductions, host).run();
}

}  // namespace vramfit
