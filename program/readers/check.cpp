#include "program/readers/check.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <vector>

#include <fmt/format.h>

#include "base/numbers/index.h"
#include "program/readers/collective_sizes.h"
#include "program/readers/contents.h"
#include "program/readers/expand.h"
#include "program/stream_order.h"

namespace vramfit::program {

namespace {

struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Check {
 public:
  explicit Check(const Program& program)
      : program_(program),
        buffers_(buffer_numbers(program)),
        pending_(at(program.tokens)),
        is_recorded_(at(program.tokens)),
        order_(program.tokens) {}

  void run() {
    read(program_.sections.front());
    const bool first_differs =
        std::ranges::any_of(program_.sections, [](const Section& s) { return s.steps != Section::Steps::every; });
    for (int step = 1; step <= 3; ++step) {
      const std::vector<bool> residents = allocated();
      for (State& state : buffers_) state.is_updated = false;
      for (const Section& section : program_.sections) {
        if (is_in_step(section, step)) read(section);
      }
      if ((step > 1 || !first_differs) && allocated() != residents)
        throw Fault("step: leaves allocated what it didn't find, or freed what it found");
      for (const std::vector<int>& held : pending_) {
        if (!held.empty()) throw Fault("step: a collective is never waited for");
      }
    }
    for (const Section& section : program_.sections) {
      if (is_save(section)) save(section);
    }
  }

  void read(const Allocate& what, const Place& place) { allocate(what.buffer, place); }
  void read(const Free& what, const Place& place) { free(what.buffer, place); }
  void read(const Keep& what, const Place& place) {
    State& state = find(what.buffer, place);
    if (state.is_in_flight) fail(what.buffer, place, "keeps", "which a collective has");
    state.is_allocated = false;
  }

  void read(const Run& run, const Place& place) {
    what_ = run_name(program_, run);
    is_run_ = true;
    read_.clear();
    order_.advance(run.stream);
    // A kernel frees its temporaries, and leaves the outputs that it allocates.
    for (std::uint32_t i = 0; i < run.inside.count; ++i) {
      const Inside& step = place.code.inside[run.inside.first + i];
      step.what == Inside::What::allocate ? allocate(step.buffer, place) : free(step.buffer, place);
    }
    if (is_copy(run.kernel)) copied_from_.clear();
    for (std::uint32_t i = 0; i < run.accesses.count; ++i) {
      const Access& access = place.code.accesses[run.accesses.first + i];
      if (access.buffer < 0) continue;
      find_parts(access, place);
      if (!program_.views.empty()) require_read(run, access, place);
      touch(access, run.stream, place);
      require_place(run, access, place);
      require_once(run, access, place);
      if (is_update(run, place)) spend(access, place);
      if (!is_copy(run.kernel)) continue;
      State& state = buffers_[at(place.number(access.buffer))];
      if (access.how == How::read) {
        add_source(place.number(access.buffer));
        copied_ = state.contents;
      } else {
        state.sources = copied_from_;
        state.contents = copied_;
      }
    }
    what_ = {};
  }

  void read(const Start& start, const Place& place) {
    what_ = "collective";
    is_run_ = false;
    if (const auto fault = size_fault(program_, start, place)) throw Fault(*fault);
    order_.advance(start.stream);
    order_.record(start.token, start.stream);
    std::vector<int>& held = pending_[at(start.token)];
    if (!held.empty()) throw Fault("collective: started twice without a wait");
    for (std::uint32_t i = 0; i < start.accesses.count; ++i) {
      const Access& access = place.code.accesses[start.accesses.first + i];
      if (access.buffer < 0) continue;
      State& state = find(access.buffer, place);
      find_parts(access, place);
      state.unread.clear();
      // Seen when it is waited for.
      if (start.collective == Collective::all_gather && state.written.any()) add_written(state);
      touch(access, start.stream, place);
      state.is_in_flight = true;
      held.push_back(place.number(access.buffer));
    }
    what_ = {};
  }

  void read(const HostRead& what, const Place& place) {
    what_ = "the host";
    is_run_ = false;
    order_.advance(what.stream);
    const Access access{what.buffer, How::read};
    find_parts(access, place);
    touch(access, what.stream, place);
    what_ = {};
  }

  void read(const Record& record, const Place& /*place*/) {
    order_.record(record.token, record.stream);
    is_recorded_[at(record.token)] = true;
  }

  void read(const Wait& wait, const Place& /*place*/) {
    order_.wait(wait.token, wait.stream);
    if (is_recorded_[at(wait.token)]) return;
    std::vector<int>& held = pending_[at(wait.token)];
    if (held.empty()) throw Fault("wait: nothing was started, or it was waited for before");
    for (const int buffer : held) buffers_[at(buffer)].is_in_flight = false;
    held.clear();
  }

 private:
  /// A buffer as it was when it was copied.
  struct Source {
    int buffer = -1;
    std::int64_t tenant = 0, version = 0;
  };
  struct State {
    bool is_allocated = false, is_in_flight = false, is_spent = false;
    bool is_updated = false;  // parameters, in this step
    Written written = {};
    Unread unread = {};
    std::int64_t tenant = 0;           // counts allocations
    std::int64_t version = 0;          // counts writes
    std::vector<Source> sources = {};  // what it is a copy of
    StreamUse use = {};
    Contents contents = {};
  };

  void read(const Section& section) {
    for (int pass = 0; pass < (section.kind == Section::Kind::middle ? 2 : 1); ++pass) {
      const std::vector<bool> found = allocated();
      read_section(program_, section, *this);
      if (section.kind == Section::Kind::middle && allocated() != found) {
        throw Fault("middle micro-batch: leaves allocated what it didn't find, or freed what it found");
      }
    }
  }

  /// It may follow any step.
  void save(const Section& section) {
    const std::vector<bool> found = allocated();
    for (int pass = 0; pass < 2; ++pass) read(section);
    if (allocated() != found) throw Fault("save: leaves allocated what it didn't find, or freed what it found");
    for (const std::vector<int>& held : pending_) {
      if (!held.empty()) throw Fault("save: a collective is never waited for");
    }
  }

  std::vector<bool> allocated() const {
    std::vector<bool> all;
    for (const State& state : buffers_) all.push_back(state.is_allocated);
    return all;
  }

  [[noreturn]] void fail(int buffer, const Place& place, std::string_view how, std::string_view why) const {
    throw Fault(fmt::format("{}{}{} {}, {}", what_, what_.empty() ? "" : ": ", how,
                            label_text(program_, place.segment_of(buffer), place.buffer(buffer).label), why));
  }

  void allocate(int buffer, const Place& place) {
    State& state = buffers_[at(place.number(buffer))];
    if (state.is_allocated) fail(buffer, place, "allocates", "which is allocated");
    const Stream pool = place.buffer(buffer).stream;
    const auto is_ready = [&](const StreamPoints& points) { return order_.is_before(points, pool); };
    if (!std::ranges::all_of(freed_[static_cast<std::size_t>(pool)], is_ready))
      fail(buffer, place, "allocates", "while another stream works with what its pool was given back");
    freed_[static_cast<std::size_t>(pool)].clear();
    state = {.is_allocated = true, .tenant = state.tenant + 1, .sources = {}};
    order_.write(pool, state.use);  // its bytes may be what the pool's stream still works with
  }

  void free(int buffer, const Place& place) {
    State& state = buffers_[at(place.number(buffer))];
    if (!state.is_allocated) fail(buffer, place, "frees", "which is not allocated");
    if (state.is_in_flight) fail(buffer, place, "frees", "which a collective has");
    if (state.unread.any()) fail(buffer, place, "frees", "a gradient that nothing has read");
    state.is_allocated = false;
    const Stream pool = place.buffer(buffer).stream;
    if (!order_.is_before(state.use.touched, pool)) freed_[static_cast<std::size_t>(pool)].push_back(state.use.touched);
  }

  State& find(int buffer, const Place& place) {
    State& state = buffers_[at(place.number(buffer))];
    if (!state.is_allocated) fail(buffer, place, "touches", "which is not allocated");
    return state;
  }

  /// What the access means of its buffer.
  void find_parts(const Access& access, const Place& place) {
    const Buffer& buffer = place.buffer(access.buffer);
    const std::int64_t elements = buffer.bytes.n / dtype_bytes(buffer.dtype).n;
    parts_.clear();
    if (access.view < 0) parts_.push_back({0, list_view(0, elements, buffer.dtype)});
    for (int i = 0; i < place.view_count(access); ++i) {
      const View& view = place.view(access, i);
      const Part part{place.base_of(view), view};
      if (view.dtype != buffer.dtype) {
        fail(access.buffer, place, "touches",
             fmt::format("as {}, which is {}", dtype_name(view.dtype), dtype_name(buffer.dtype)));
      }
      if (part.begin() < 0 || part.end() > elements) fail(access.buffer, place, "touches", "beyond its end");
      parts_.push_back(part);
    }
  }

  void add_written(State& state) const {
    for (const Part& part : parts_) state.written.add(part);
  }

  /// A contribution to a gradient of parameters that is written over is lost.
  void require_read(const Run& run, const Access& access, const Place& place) {
    if (place.buffer(access.buffer).category != Category::gradients) return;
    Unread& unread = find(access.buffer, place).unread;
    if (access.how == How::read) return unread.clear();
    for (const Part& part : parts_) {
      if (access.how != How::add && unread.has(part))
        fail(access.buffer, place, "writes over", "which nothing has read");
      if (run.kernel != Kernel::zero) unread.add(part);
    }
  }

  void require_place(const Run& run, const Access& access, const Place& place) const {
    const bool is_on_host = is_in_host_memory(access, place);
    if (run.stream == Stream::host && !is_on_host) fail(access.buffer, place, "touches", "which lies on the card");
    if (run.stream != Stream::host && is_on_host && !reaches_host(run.kernel))
      fail(access.buffer, place, "touches", "which lies in host memory");
  }

  static bool is_in_host_memory(const Access& access, const Place& place) {
    const Space space = place.buffer(access.buffer).space;
    return space == Space::pinned || space == Space::host;
  }

  /// Not what finds sums for it, which leaves the parameters as they are.
  static bool is_update(const Run& run, const Place& place) {
    return run.kernel == Kernel::update && place.code.accesses[run.accesses.first].how != How::read;
  }

  static bool reads_parameters(Kernel kernel) {
    return kernel == Kernel::forward || kernel == Kernel::backward || kernel == Kernel::gather_own ||
           kernel == Kernel::read_scaled;
  }

  /// A step updates parameters once, when nothing of it reads them any more.
  void require_once(const Run& run, const Access& access, const Place& place) {
    // Those with scales are written when the numbers that were updated for them are rounded.
    const bool updates = (is_update(run, place) && access.how == How::add) ||
                         (run.kernel == Kernel::round_scaled && access.how != How::read);
    if (!updates && !reads_parameters(run.kernel)) return;
    if (place.buffer(access.buffer).category != Category::parameters) return;
    bool& is_updated = buffers_[at(place.number(access.buffer))].is_updated;
    if (is_updated) fail(access.buffer, place, updates ? "updates" : "reads", "which this step has updated");
    is_updated = updates;
  }

  /// Gradients that a later reduction adds to, or that are clipped later, would be lost on the parameters.
  void spend(const Access& access, const Place& place) {
    const bool is_gradient = place.buffer(access.buffer).category == Category::gradients;
    if (is_gradient && access.how == How::read) buffers_[at(place.number(access.buffer))].is_spent = true;
  }

  /// One number for a value, whichever segment it is named in: what one passes to the next is value 0 there.
  int number_of(const Access& access, const Place& place) const {
    if (access.value < 0 || place.segment < 0) return Contents::kUnknown;
    int segment = place.segment, value = access.value;
    while (value <= gradient_of(0) && segment > 0 && !program_.outputs.empty()) {
      --segment;
      const int output = program_.outputs[at(segment)];
      value = value == gradient_of(0) ? gradient_of(output) : value_of(output);
    }
    return segment * 65536 + value;
  }

  /// A run that reads a value may leave another one in its place.
  void require_value(State& state, const Access& access, const Place& place) {
    const int number = place.number(access.buffer), value = number_of(access, place);
    if (access.how == How::read) {
      if (!state.contents.may_hold(value)) fail(access.buffer, place, "reads", "which holds another value by now");
      read_.push_back(number);
    } else if (access.how == How::pass) {
      state.contents.add(value);
    } else {
      const bool is_new = access.how != How::add || std::ranges::count(read_, number) > 0;
      if (!is_new && !state.contents.may_hold(value))
        fail(access.buffer, place, "adds to", "which holds another value by now");
      state.contents.set(value);
    }
  }

  /// What the latest call on `stream` does.
  void touch(const Access& access, Stream stream, const Place& place) {
    State& state = find(access.buffer, place);
    const bool only_reads = access.how == How::read || access.how == How::pass;
    if (!order_.is_before(only_reads ? state.use.written : state.use.touched, stream))
      fail(access.buffer, place, "touches", "for which its stream has not waited");
    only_reads ? order_.read(stream, state.use) : order_.write(stream, state.use);
    if (state.is_in_flight) fail(access.buffer, place, "touches", "which a collective has");
    // Those in host memory stay allocated: the first of the next step's take their place.
    if (access.how == How::write && is_in_host_memory(access, place)) state.is_spent = false;
    if (state.is_spent) fail(access.buffer, place, "touches", "with which the parameters were updated");
    if (only_reads || access.how == How::add) {
      if (!state.written.any()) fail(access.buffer, place, "reads", "which nothing has written");
      for (const Part& part : parts_) require_written(access, part, place);
      if (is_stale(state)) fail(access.buffer, place, "reads", "whose source was written since it was copied");
    }
    if (is_run_) require_value(state, access, place);
    if (!is_run_ && access.how == How::write) state.contents = {};
    if (only_reads) return;
    if (is_run_ || access.how != How::add) state.sources.clear();  // a gather adds to a copy what is missing of it
    if (access.how == How::write_part && access.view < 0) {
      state.written.add_unknown_part();
    } else {
      add_written(state);
    }
    ++state.version;
  }

  void require_written(const Access& access, const Part& part, const Place& place) const {
    if (!buffers_[at(place.number(access.buffer))].written.has(part))
      fail(access.buffer, place, "reads", "of which a part was written");
  }

  /// Of what copies now. A copy of a copy is one of the first source.
  void add_source(int buffer) {
    const State& state = buffers_[at(buffer)];
    if (state.sources.empty()) {
      copied_from_.push_back({buffer, state.tenant, state.version});
    } else {
      copied_from_.insert(copied_from_.end(), state.sources.begin(), state.sources.end());
    }
  }

  bool is_stale(const State& copy) const {
    return std::ranges::any_of(copy.sources, [this](const Source& s) {
      const State& source = buffers_[at(s.buffer)];
      return source.is_allocated && source.tenant == s.tenant && source.version != s.version;
    });
  }

  const Program& program_;
  std::vector<State> buffers_;             // by number
  std::vector<std::vector<int>> pending_;  // by token: what the collective has
  std::vector<bool> is_recorded_;          // by token: a point of a stream, no collective
  StreamOrder order_;
  std::array<std::vector<StreamPoints>, kStreams> freed_;  // by pool: what other streams still had of what it got back
  std::string_view what_;                                  // the instruction that is read
  bool is_run_ = false;                                    // that instruction
  std::vector<Source> copied_from_;                        // by it so far
  Contents copied_;                                        // likewise: what the source held
  std::vector<int> read_;                                  // by it so far: numbers of buffers
  std::vector<Part> parts_;                                // of the access that is looked at
};

}  // namespace

std::optional<std::string> fault_of(const Program& program) {
  try {
    Check(program).run();
  } catch (const Fault& fault) {
    return fault.what();
  }
  return std::nullopt;
}

}  // namespace vramfit::program
