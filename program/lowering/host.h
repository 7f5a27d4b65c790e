// Copies between the card and host memory, each on the stream of its way, and the order that they and what the host
// computes need. docs/offload.md has the picture.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "job/cluster/device.h"
#include "program/lowering/writer.h"
#include "program/stages/offload.h"
#include "program/stages/units_layout.h"

namespace vramfit::program {

/// Of a copy between a card and host memory; a CPU rank copies within its one memory.
Work work_of_copy(Bytes bytes, bool is_cuda);

/// Equal buffers in host memory, one of which is filled while the host reads another.
struct Staging {
  std::int64_t buffers = 0;
  Bytes each = {};
  Dtype dtype = Dtype::f32;
  Bytes all() const { return buffers * each; }
};
/// What gradients of a layout's units pass through on their way to an update, or (`sums`) to be added to those of an
/// earlier reduction.
Staging gradients_staging(const UnitLayout& layout, const Offload& offload, bool sums);
/// What codes of trained matrices pass through.
Staging codes_staging(const UnitLayout& layout, const Offload& offload);

class HostSide {
 public:
  HostSide(Writer& writer, Labels& labels, int& tokens, DeviceKind device, Offload offload)
      : writer_(writer), labels_(labels), tokens_(tokens), is_cuda_(device == DeviceKind::cuda), offload_(offload) {}

  const Offload& offload() const { return offload_; }

  /// The same in host memory: pinned, so that a card copies beside everything else. A CPU rank has one memory, in which
  /// these are copies of their own.
  Buffer on_host(Buffer buffer) const;
  /// A state of the optimizer where the job keeps it: on the card, in host memory, or in managed memory. How often a
  /// unit was updated, a single number (`is_count`), isn't worth a page. A CPU rank has one memory.
  Buffer placed_state(Buffer state, bool is_count) const;
  void load_staging(const UnitLayout& layout, bool sums);
  void load_codes(const UnitLayout& layout);

  /// What `to` is given next begins after all that `from` has been given.
  void order(Stream from, Stream to);
  /// After what the compute stream and the host have been given; returns the token of the copy's end.
  int to_host(int unit, const Writer::Operand& from, const Writer::Operand& to, Bytes bytes);
  int to_device(int unit, const Writer::Operand& from, const Writer::Operand& to, Bytes bytes);

  struct Copy {
    Writer::Operand from, to;
    Bytes bytes;
  };
  /// Several, one after the other on `stream`; returns the token of the last one's end.
  int copy_all(Stream stream, std::span<const Copy> copies, int unit = -1);

  /// The gradient shard of a unit on its way to the host.
  struct Leaving {
    int unit = -1;
    Held shard;         // on the card
    Held sum;           // on the host
    bool adds = false;  // to what the sum holds
    int view = -1;      // of a buffer that may be larger than the shard: as much as that
    Bytes bytes;
  };
  /// Starts the copy. The shard stays on the card until the next one leaves, or land().
  void leave(Leaving leaving);
  /// The copy is done, the shard freed, and the sum complete.
  void land();

  /// What the host writes codes to while others leave from elsewhere. `token`: of the latest copy from it within this
  /// section; -1: none.
  struct CodesStaging {
    Held held;
    int token = -1;
  };
  /// The host waits until what was there has left.
  CodesStaging& next_codes();
  /// A section begins, before which the host has waited for everything.
  void begin_codes() {
    for (CodesStaging& staging : codes_) staging.token = -1;
  }

  /// A part of host memory that a copy may go to while the host reads the other one.
  const Held& next_staging() { return staging_.at(next_++ % staging_.size()); }

 private:
  Writer& writer_;
  Labels& labels_;
  int& tokens_;  // how many there are
  bool is_cuda_;
  Offload offload_;
  std::vector<Held> staging_;
  std::size_t next_ = 0;
  std::vector<CodesStaging> codes_;
  std::size_t next_codes_ = 0;
  std::optional<Leaving> leaving_;
  Held landing_;     // of `leaving_`, if it adds
  int landed_ = -1;  // its token
};

}  // namespace vramfit::program
