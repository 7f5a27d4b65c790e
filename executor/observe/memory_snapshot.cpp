#include "executor/observe/memory_snapshot.h"

#include <fmt/format.h>

#include "base/pickle/pickle_writer.h"

namespace vramfit {

namespace {

class SnapshotWriter {
 public:
  SnapshotWriter(const MemorySnapshot& snapshot, std::ostream& out) : in_(snapshot), pickle_(out) {}

  void write() {
    pickle_.begin_dict().key("segments").begin_list();
    for (const MemorySegment& segment : in_.segments) write_segment(segment);
    pickle_.end_list().key("device_traces").begin_list();
    for (int device = 0; device < in_.device; ++device) pickle_.begin_list().end_list();
    write_trace();
    pickle_.end_list().key("allocator_settings").begin_dict();
    if (in_.is_cuda) pickle_.member("PYTORCH_CUDA_ALLOC_CONF", in_.settings);
    pickle_.end_dict().key("external_annotations").begin_list().end_list().end_dict().stop();
  }

 private:
  void write_frame(const char* file, const std::string& name) {
    pickle_.begin_dict().member("name", name).member("filename", file).member("line", 0).end_dict();
  }

  /// Innermost first, as in a stack: flame graphs are then by category, phase and label.
  void write_frames(const MemoryLabel& label) {
    pickle_.key("frames").begin_list();
    if (label.text >= 0) {
      write_frame("label", in_.history.texts()[static_cast<std::size_t>(label.text)]);
      write_frame("phase", label.step == 0 ? std::string(phase_name(label.phase))
                                           : fmt::format("step {} {}", label.step, phase_name(label.phase)));
      write_frame("category", std::string(category_name(label.category)));
    }
    pickle_.end_list();
  }

  void write_segment(const MemorySegment& segment) {
    pickle_.begin_dict().member("device", segment.device).member("address", as_integer(segment.address));
    pickle_.member("total_size", segment.total.n).member("allocated_size", segment.allocated.n);
    pickle_.member("active_size", segment.active.n).member("requested_size", segment.requested.n);
    pickle_.member("stream", segment.stream).member("segment_type", segment.large ? "large" : "small");
    pickle_.key("segment_pool_id").pair(0, 0).member("is_expandable", segment.expandable);
    write_frames({});
    pickle_.key("blocks").begin_list();
    std::uint64_t address = segment.address;
    for (const MemoryBlock& block : segment.blocks) {
      pickle_.begin_dict().member("address", as_integer(address)).member("size", block.size.n);
      pickle_.member("requested_size", block.requested.n).member("state", block.state);
      const auto live = in_.history.live().find(address);
      write_frames(live == in_.history.live().end() ? MemoryLabel{} : live->second.label);
      pickle_.end_dict();
      address += static_cast<std::uint64_t>(block.size.n);
    }
    pickle_.end_list().end_dict();
  }

  void write_entry(const MemoryEntry& entry, MemoryAction action) {
    pickle_.begin_dict().member("action", memory_action_name(action));
    pickle_.member(action == MemoryAction::oom ? "device_free" : "addr", as_integer(entry.address));
    pickle_.member("size", entry.bytes.n).member("stream", entry.stream).member("time_us", entry.microseconds);
    if (entry.label.text >= 0) pickle_.member("category", category_name(entry.label.category));
    write_frames(entry.label);
    pickle_.end_dict();
  }

  /// The viewer colours blocks by category once one event has one, and then wants "unknown" to be among them.
  void write_trace() {
    pickle_.begin_list();
    for (const MemoryEntry& entry : in_.history.entries()) {
      const bool is_alloc = entry.action == MemoryAction::alloc, is_free = entry.action == MemoryAction::free_completed;
      if (!in_.is_cuda && is_alloc) write_entry(entry, MemoryAction::segment_alloc);
      if (!in_.is_cuda && is_free) write_entry(entry, MemoryAction::free_requested);
      write_entry(entry, entry.action);
      if (!in_.is_cuda && is_free) write_entry(entry, MemoryAction::segment_free);
    }
    pickle_.begin_dict().member("action", "snapshot").member("addr", 0).member("size", 0).member("stream", 0);
    pickle_.member("time_us", in_.history.entries().empty() ? 0 : in_.history.entries().back().microseconds);
    pickle_.member("category", "unknown");
    write_frames({});
    pickle_.end_dict().end_list();
  }

  static std::int64_t as_integer(std::uint64_t address) { return static_cast<std::int64_t>(address); }

  const MemorySnapshot& in_;
  PickleWriter pickle_;
};

}  // namespace

void write_memory_snapshot(const MemorySnapshot& snapshot, std::ostream& out) { SnapshotWriter(snapshot, out).write(); }

}  // namespace vramfit
