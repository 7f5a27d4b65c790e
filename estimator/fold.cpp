#include <algorithm>

#include "estimator/estimate.h"
#include "estimator/expandable_segments.h"

namespace vramfit {

namespace {

/// The running sums of a ledger, and their peaks.
class Folder {
 public:
  explicit Folder(const Device& device) : is_cuda_(device.kind == DeviceKind::cuda) {}

  void add(const Event& event) {
    enter_phase(event);
    const Bytes requested{event.bytes > 0 ? event.bytes : -event.bytes};
    const Bytes allocated = is_cuda_ ? allocated_block(requested) : requested;
    Bytes& category = live_.categories[static_cast<std::size_t>(event.category)];
    if (event.bytes > 0) {
      requested_ += requested;
      allocated_ += allocated;
      category += requested;
      live_.rounding += allocated - requested;
      if (is_cuda_) segments_.allocate(event.id, requested);
      record();
    } else {
      requested_ -= requested;
      allocated_ -= allocated;
      category -= requested;
      live_.rounding -= allocated - requested;
      if (is_cuda_) segments_.free(event.id);
    }
  }

  RankEstimate finish() {
    result_.breakdown.fragmentation = result_.peak_reserved - result_.peak_allocated;
    return std::move(result_);
  }

 private:
  Bytes reserved() const { return is_cuda_ ? segments_.reserved() : allocated_; }

  /// A phase's peak starts at what is live when it is entered.
  void enter_phase(const Event& event) {
    const bool steady = event.step >= 2;
    if (current_ != nullptr && current_->phase == event.phase && current_->steady == steady) return;
    const auto known = std::ranges::find_if(
        result_.phases, [&](const PhasePeak& p) { return p.phase == event.phase && p.steady == steady; });
    if (known == result_.phases.end()) {
      result_.phases.push_back(
          {.phase = event.phase, .steady = steady, .requested = {}, .allocated = {}, .reserved = {}});
      current_ = &result_.phases.back();
    } else {
      current_ = &*known;
    }
    record_phase();
  }

  void record_phase() {
    current_->requested = std::max(current_->requested, requested_);
    current_->allocated = std::max(current_->allocated, allocated_);
    current_->reserved = std::max(current_->reserved, reserved());
  }

  void record() {
    record_phase();
    result_.peak_requested = std::max(result_.peak_requested, requested_);
    result_.peak_reserved = std::max(result_.peak_reserved, reserved());
    if (allocated_ <= result_.peak_allocated) return;
    result_.peak_allocated = allocated_;
    result_.breakdown = live_;
  }

  bool is_cuda_;
  ExpandableSegments segments_;
  Bytes requested_, allocated_;
  Breakdown live_;
  RankEstimate result_;
  PhasePeak* current_ = nullptr;
};

}  // namespace

RankEstimate fold(const Ledger& ledger, const Job& /*job*/, const Device& device) {
  Folder folder(device);
  for (const Event& event : ledger.events) folder.add(event);
  return folder.finish();
}

}  // namespace vramfit
