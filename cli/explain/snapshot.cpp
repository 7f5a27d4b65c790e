#include "cli/explain/snapshot.h"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/suggest.h"

namespace vramfit {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;
// References may lead to the same values again and again. An event takes some 15, so this is for four million.
constexpr std::size_t kMostVisits = std::size_t{1} << 26;
constexpr std::size_t kMostFrames = 512, kMostKeys = 1000, kMostSettings = 100;
constexpr std::int64_t kMostSize = std::int64_t{1} << 50;  // no card has a PiB; sums stay far from 64 bits
constexpr int kMostDevices = 1024;

struct ActionName {
  std::string_view name;
  TraceAction action;
};
constexpr std::array kActions{
    ActionName{"alloc", TraceAction::allocate},
    ActionName{"free_requested", TraceAction::free_requested},
    ActionName{"free_completed", TraceAction::free_completed},
    ActionName{"segment_alloc", TraceAction::segment_grows},
    ActionName{"segment_map", TraceAction::segment_grows},
    ActionName{"segment_free", TraceAction::segment_shrinks},
    ActionName{"segment_unmap", TraceAction::segment_shrinks},
    ActionName{"oom", TraceAction::oom},
};

constexpr std::size_t kLongestName = 300;

/// A place in the document, made text only where something is wrong: "segments[3].blocks[0]".
struct Where {
  std::string_view list, inner;  // "segments", "blocks"
  std::size_t index = 0, inner_index = 0;

  std::string text() const {
    if (list.empty()) return "";
    const std::string outer = fmt::format("{}[{}]", list, index);
    return inner.data() == nullptr ? outer : fmt::format("{}{}[{}]", outer, inner, inner_index);
  }
};
constexpr Where kTop{};

class SnapshotReader {
 public:
  SnapshotReader(const PickleDocument& document, const std::string& path) : document_(document), path_(path) {}

  Snapshot read() {
    const PickleItem root = document_.root();
    if (root.kind() != PickleKind::dict) fail(kTop, fmt::format("is {}", pickle_kind_text(root.kind())));
    const PickleItem segments = member(root, "segments", PickleKind::list, kTop);
    for (std::size_t i = 0; i < segments.size(); ++i) read_segment(segments.item(i), i);
    if (const auto traces = optional_member(root, "device_traces", PickleKind::list, kTop)) read_traces(*traces);
    if (const auto settings = optional_member(root, "allocator_settings", PickleKind::dict, kTop)) {
      read_settings(*settings);
    }
    for (auto& [number, device] : devices_) snapshot_.devices.push_back(std::move(device));
    return std::move(snapshot_);
  }

 private:
  [[noreturn]] void fail(const Where& place, const std::string& what) const {
    const std::string where = place.text();
    throw InputError(fmt::format("{}: {}{}{}; expected a memory snapshot as torch.cuda.memory._dump_snapshot writes it",
                                 printable(path_), where, where.empty() ? "" : ": ", what));
  }

  void visit(std::size_t count) {
    visits_ += count;
    if (visits_ > kMostVisits) fail(kTop, "refers to the same values too often");
  }

  std::optional<PickleItem> find(const PickleItem& dict, std::string_view name) {
    if (dict.size() > kMostKeys) fail(kTop, fmt::format("a dict of {} keys", dict.size()));
    for (std::size_t i = 0; i < dict.size(); ++i) {
      visit(1);
      const PickleItem key = dict.key(i);
      if (key.kind() == PickleKind::text && key.text() == name) return dict.mapped(i);
    }
    return std::nullopt;
  }

  std::optional<PickleItem> optional_member(const PickleItem& dict, std::string_view name, PickleKind kind,
                                            const Where& where) {
    const std::optional<PickleItem> item = find(dict, name);
    if (!item || item->kind() == PickleKind::none) return std::nullopt;
    if (item->kind() != kind) {
      fail(where, fmt::format("{} is {}, not {}", name, pickle_kind_text(item->kind()), pickle_kind_text(kind)));
    }
    return item;
  }

  PickleItem member(const PickleItem& dict, std::string_view name, PickleKind kind, const Where& where) {
    const std::optional<PickleItem> item = optional_member(dict, name, kind, where);
    if (!item) fail(where, fmt::format("has no {}", name));
    return *item;
  }

  void require_dict(const PickleItem& item, const Where& where) const {
    if (item.kind() != PickleKind::dict) fail(where, fmt::format("is {}, not a dict", pickle_kind_text(item.kind())));
  }

  std::int64_t number(const PickleItem& dict, std::string_view name, const Where& where) {
    return member(dict, name, PickleKind::integer, where).integer();
  }

  Bytes checked(std::int64_t size, std::string_view name, const Where& where) const {
    if (size < 0 || size > kMostSize) fail(where, fmt::format("{} is {}", name, size));
    return Bytes{size};
  }

  Bytes size(const PickleItem& dict, std::string_view name, const Where& where) {
    return checked(number(dict, name, where), name, where);
  }

  SnapshotDevice& device(std::int64_t number, const Where& where) {
    if (number < 0 || number >= kMostDevices) fail(where, fmt::format("device {}", number));
    SnapshotDevice& device = devices_[static_cast<int>(number)];
    device.device = static_cast<int>(number);
    return device;
  }

  void read_segment(const PickleItem& item, std::size_t index) {
    const Where where{.list = "segments", .inner = {}, .index = index};
    require_dict(item, where);
    SnapshotSegment segment;
    segment.size = size(item, "total_size", where);
    if (const auto expandable = optional_member(item, "is_expandable", PickleKind::boolean, where)) {
      segment.is_expandable = expandable->integer() != 0;
    }
    segment.is_private = is_private(item);
    const auto address = optional_member(item, "address", PickleKind::integer, where);
    std::uint64_t next = address ? static_cast<std::uint64_t>(address->integer()) : 0;
    const PickleItem blocks = member(item, "blocks", PickleKind::list, where);
    visit(blocks.size());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      SnapshotBlock block = read_block(blocks.item(i), Where{"segments", ".blocks", index, i});
      if (block.address == 0) block.address = next;  // 2.0 doesn't say
      next = block.address + static_cast<std::uint64_t>(block.size.n);
      segment.blocks.push_back(block);
    }
    const auto number_of = optional_member(item, "device", PickleKind::integer, where);
    SnapshotDevice& of = device(number_of ? number_of->integer() : 0, where);
    segment.device = of.device;
    of.segments.push_back(std::move(segment));
  }

  bool is_private(const PickleItem& segment) {
    const auto pool = optional_member(segment, "segment_pool_id", PickleKind::tuple, kTop);
    if (!pool || pool->size() != 2) return false;
    const auto is_zero = [](const PickleItem& part) {
      return part.kind() == PickleKind::integer && part.integer() == 0;
    };
    return !is_zero(pool->item(0)) || !is_zero(pool->item(1));
  }

  SnapshotBlock read_block(const PickleItem& item, const Where& where) {
    require_dict(item, where);
    SnapshotBlock block;
    block.size = size(item, "size", where);
    if (const auto address = optional_member(item, "address", PickleKind::integer, where)) {
      block.address = static_cast<std::uint64_t>(address->integer());
    }
    const std::string_view state = member(item, "state", PickleKind::text, where).text();
    if (state == "active_allocated") {
      block.state = BlockState::allocated;
    } else if (state.starts_with("active_")) {  // active_awaiting_free, in 2.0 active_pending_free
      block.state = BlockState::awaiting_free;
    }
    if (block.state != BlockState::allocated) return block;
    block.requested = block.size;
    std::optional<PickleItem> said = item;
    if (const auto history = optional_member(item, "history", PickleKind::list, where);
        history && history->size() > 0) {
      said = history->item(0);  // 2.0
      require_dict(*said, where);
      if (const auto real = optional_member(*said, "real_size", PickleKind::integer, where))
        block.requested = checked(real->integer(), "real_size", where);
    }
    if (const auto requested = optional_member(item, "requested_size", PickleKind::integer, where)) {
      block.requested = checked(requested->integer(), "requested_size", where);
    }
    block.stack = stack_of(*said, where);
    return block;
  }

  void read_traces(const PickleItem& traces) {
    for (std::size_t i = 0; i < traces.size() && i < kMostDevices; ++i) {
      const Where where{.list = "device_traces", .inner = {}, .index = i};
      const PickleItem events = traces.item(i);
      if (events.kind() != PickleKind::list) fail(where, fmt::format("is {}", pickle_kind_text(events.kind())));
      if (events.size() == 0) continue;
      visit(events.size());
      SnapshotDevice& of = device(static_cast<std::int64_t>(i), where);
      for (std::size_t k = 0; k < events.size(); ++k) add_event(of, events.item(k), i, k);
    }
  }

  void add_event(SnapshotDevice& of, const PickleItem& item, std::size_t device, std::size_t index) {
    const Where where{"device_traces", "", device, index};
    if (item.kind() != PickleKind::dict) fail(where, "is no dict");
    const auto action = find(item, "action");
    if (!action || action->kind() != PickleKind::text) fail(where, "has no action");
    const auto* const row = std::ranges::find(kActions, action->text(), &ActionName::name);
    if (row == kActions.end()) return;  // "snapshot", and what later versions add
    TraceEvent event;
    event.action = row->action;
    event.size = size(item, "size", where);
    if (event.action == TraceAction::oom) {
      if (const auto free = optional_member(item, "device_free", PickleKind::integer, kTop)) {
        event.free = checked(free->integer(), "device_free", where);
      }
    } else {
      event.address = static_cast<std::uint64_t>(number(item, "addr", where));
    }
    if (event.action == TraceAction::allocate || event.action == TraceAction::oom) {
      event.stack = stack_of(item, where);
    }
    of.events.push_back(event);
  }

  std::int32_t stack_of(const PickleItem& item, const Where& where) {
    const auto frames = optional_member(item, "frames", PickleKind::list, where);
    if (!frames) return kNoStack;
    const auto [known, is_new] =
        stack_numbers_.try_emplace(frames->id(), static_cast<std::int32_t>(snapshot_.stacks.size()));
    if (is_new) snapshot_.stacks.push_back(read_stack(*frames, where));
    return known->second;
  }

  /// Stacks share frames, so each is looked at once.
  const ReadFrame& frame_of(const PickleItem& item, const Where& where) {
    require_dict(item, where);
    const auto known = frames_.find(item.id());
    if (known != frames_.end()) return known->second;
    CodeFrame frame;
    const auto text = [&](std::string_view name) -> std::string_view {
      const auto found = optional_member(item, name, PickleKind::text, where);
      if (!found) return {};
      const std::string_view whole = found->text();
      return whole.substr(whole.size() - std::min(whole.size(), kLongestName));
    };
    frame.file = text("filename");
    frame.function = text("name");
    if (const auto line = optional_member(item, "line", PickleKind::integer, where)) frame.line = line->integer();
    return frames_.emplace(item.id(), read_frame(frame)).first->second;
  }

  /// The innermost frame comes first in a snapshot.
  SnapshotStack read_stack(const PickleItem& list, const Where& where) {
    std::vector<ReadFrame> frames;
    SnapshotStack stack;
    for (std::size_t i = 0; i < std::min(list.size(), kMostFrames); ++i) {
      visit(1);
      frames.push_back(frame_of(list.item(i), where));
    }
    std::ranges::reverse(frames);
    stack.site = site_of(frames);
    stack.has_python = stack.site.innermost.has_value();
    return stack;
  }

  void read_settings(const PickleItem& settings) {
    for (std::size_t i = 0; i < std::min(settings.size(), kMostSettings); ++i) {
      const PickleItem key = settings.key(i), value = settings.mapped(i);
      if (key.kind() != PickleKind::text) continue;
      const std::string name = printable(key.text());
      if (value.kind() == PickleKind::text) snapshot_.settings.emplace_back(name, printable(value.text()));
      if (value.kind() == PickleKind::boolean)
        snapshot_.settings.emplace_back(name, value.integer() != 0 ? "true" : "false");
      if (value.kind() == PickleKind::integer)
        snapshot_.settings.emplace_back(name, fmt::format("{}", value.integer()));
    }
  }

  const PickleDocument& document_;
  const std::string& path_;
  std::size_t visits_ = 0;
  Snapshot snapshot_;
  std::map<int, SnapshotDevice> devices_;
  std::unordered_map<std::uint32_t, std::int32_t> stack_numbers_;  // by the value of the list of frames
  std::unordered_map<std::uint32_t, ReadFrame> frames_;            // by the value of the frame
};

}  // namespace

bool is_pickle(const std::string& path) {
  const File file(path, {.name = "", .code = ExitCode::usage});
  std::array<char, 2> begin{};
  if (file.bytes() < 2) return false;
  file.read(0, begin);
  if (begin[0] == 'P' && begin[1] == 'K') {
    fail_file(
        {.name = "", .code = ExitCode::usage}, path,
        "a zip file, as torch.save writes; give the pickle that torch.cuda.memory._dump_snapshot wrote, or a log");
  }
  return static_cast<unsigned char>(begin[0]) == 0x80;
}

Snapshot read_snapshot(const std::string& path) {
  const PickleDocument document(read_file(path, {.name = "", .code = ExitCode::usage}, kMostBytes), path);
  return SnapshotReader(document, path).read();
}

}  // namespace vramfit
