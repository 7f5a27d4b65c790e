#include "program/readers/program_text.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace vramfit::program {

namespace {

std::string_view name_of(Section::Kind kind) {
  switch (kind) {
    case Section::Kind::load:
      return "load";
    case Section::Kind::first:
      return "first micro-batch";
    case Section::Kind::middle:
      return "middle micro-batch";
    case Section::Kind::last:
      return "last micro-batch";
    case Section::Kind::update:
      return "update";
    case Section::Kind::save_sharded:
      return "save, sharded";
    case Section::Kind::save_full:
      return "save, full";
  }
  return "";
}

std::string_view name_of(Section::Steps steps) {
  switch (steps) {
    case Section::Steps::every:
      return "";
    case Section::Steps::first:
      return " of the first step";
    case Section::Steps::later:
      return " of later steps";
  }
  return "";
}

std::string_view name_of(Stream stream) {
  switch (stream) {
    case Stream::compute:
      return "compute";
    case Stream::all_gather:
      return "all_gather";
    case Stream::reduce_scatter:
      return "reduce_scatter";
    case Stream::to_host:
      return "to_host";
    case Stream::to_device:
      return "to_device";
    case Stream::reference:
      return "reference";
    case Stream::host:
      return "host";
  }
  return "";
}

std::string_view name_of(How how) {
  switch (how) {
    case How::read:
      return "reads";
    case How::write:
      return "writes";
    case How::write_part:
      return "writes its part of";
    case How::add:
      return "changes";
    case How::pass:
      return "passes on";
  }
  return "";
}

class Text {
 public:
  explicit Text(const Program& program) : program_(program) {}

  std::string take() {
    std::size_t written = 0;  // instructions
    for (const Section& section : program_.sections) {
      text_ += fmt::format("{}{}{}", name_of(section.kind), name_of(section.steps),
                           section.times == 1 ? "" : fmt::format(", {} times", section.times));
      const bool is_known = section.begin < written;
      text_ += is_known ? ": the same once more\n" : "\n";
      if (is_known) continue;
      code_ = &program_.main;
      slots_ = 0;
      phase_.reset();
      for (; written < section.end; ++written) write(program_.main.instructions[written]);
    }
    for (std::size_t b = 0; b < program_.blocks.size(); ++b) {
      text_ += fmt::format("block {}\n", b);
      code_ = &program_.blocks[b].code;
      slots_ = program_.blocks[b].slots;
      for (const Instruction& instruction : code_->instructions) write(instruction);
    }
    return std::move(text_);
  }

 private:
  void write(const Instruction& instruction) {
    std::visit([&](const auto& what) { write(what); }, instruction);
  }

  void write(const Allocate& what) { text_ += fmt::format("  allocate {}\n", with_bytes(what.buffer)); }
  void write(const Keep& what) { text_ += fmt::format("  keep {} until the job ends\n", name(what.buffer)); }
  void write(const EmptyCache& /*what*/) { text_ += "  give back what is cached\n"; }
  void write(const Free& what) { text_ += fmt::format("  free {}\n", name(what.buffer)); }

  void write(const Run& run) {
    const bool is_op = run.op >= 0 && run.kernel != Kernel::call;
    const std::string joined = run.joined < 0 ? "" : fmt::format("{} and ", run.joined);
    text_ +=
        fmt::format("  run {}{}{}{}\n", run_name(program_, run), is_op ? fmt::format(" op {}{}", joined, run.op) : "",
                    run.times == 1 ? "" : fmt::format(", {} times", run.times), beside(run.stream));
    write_accesses(run.accesses);
    write_work(run.work);
    for (std::uint32_t i = 0; i < run.inside.count; ++i) {
      const Inside& step = code_->inside[run.inside.first + i];
      text_ += step.what == Inside::What::allocate ? fmt::format("    allocates {}\n", with_bytes(step.buffer))
                                                   : fmt::format("    frees {}\n", name(step.buffer));
    }
  }

  void write(const Start& start) {
    text_ += fmt::format("  start {} over {}{}{}, #{}{}\n", collective_name(start.collective), axis_name(start.axis),
                         start.peer < 0 ? "" : fmt::format(" with stage {}", start.peer),
                         start.bytes.n == 0 ? "" : fmt::format(" of {} bytes", start.bytes.n), start.token,
                         beside(start.stream));
    write_accesses(start.accesses);
  }
  void write(const Record& record) { text_ += fmt::format("  record #{}{}\n", record.token, beside(record.stream)); }
  void write(const HostRead& read) { text_ += fmt::format("  read {} to the host\n", name(read.buffer)); }
  void write(const Wait& wait) { text_ += fmt::format("  wait for #{}{}\n", wait.token, beside(wait.stream)); }

  void write(const Call& call) {
    text_ += fmt::format("  call block {} for {}\n", call.block,
                         program_.segments.at(static_cast<std::size_t>(call.segment)));
    for (std::uint32_t slot = 0; slot < call.bindings.count; ++slot) {
      text_ += fmt::format("    ${} = {}\n", slot, name(code_->bindings[call.bindings.first + slot]));
    }
    for (std::uint32_t i = 0; i < call.offsets.count; ++i) {
      text_ += fmt::format("    p{} = {}\n", i, code_->offsets[call.offsets.first + i]);
    }
  }
  void write(const Mark& mark) {
    if (std::exchange(phase_, mark.phase) != mark.phase) text_ += fmt::format("  phase {}\n", phase_name(mark.phase));
  }

  /// "" on the compute stream.
  static std::string beside(Stream stream) {
    return stream == Stream::compute ? "" : fmt::format(", on stream {}", name_of(stream));
  }

  void write_accesses(Range accesses) {
    for (std::uint32_t i = 0; i < accesses.count; ++i) {
      const Access& access = code_->accesses[accesses.first + i];
      if (access.buffer < 0) continue;
      text_ += fmt::format("    {} {}{}\n", name_of(access.how), name(access.buffer), views_of(access));
    }
  }

  /// " as bf16 [16, 8] at 128"; several in lines of their own; "" for all of the buffer.
  std::string views_of(const Access& access) const {
    if (access.view < 0) return "";
    const auto first = static_cast<std::size_t>(access.view);
    const int parts = program_.views[first].parts;
    if (parts == 1) return " as " + view_text(program_.views[first]);
    std::string text = fmt::format(" in {} parts", parts);
    for (std::size_t i = first; i < first + static_cast<std::size_t>(parts); ++i) {
      text += "\n      " + view_text(program_.views[i]);
    }
    return text;
  }

  /// In blocks, p3 is the call's: where the parameter begins.
  static std::string view_text(const View& view) {
    const std::string sizes =
        view.columns == 0 ? fmt::format("{}", view.rows) : fmt::format("{}, {}", view.rows, view.columns);
    const std::string rows = view.pitch == view.columns ? "" : fmt::format(", a row every {}", view.pitch);
    const std::string base = view.base < 0 ? "" : fmt::format("p{} + ", view.base);
    return fmt::format("{} [{}] at {}{}{}", dtype_name(view.dtype), sizes, base, view.offset, rows);
  }

  void write_work(Range range) {
    for (std::uint32_t i = 0; i < range.count; ++i) {
      const Work& work = code_->work[range.first + i];
      if (work.launches == 0) continue;
      text_ += fmt::format("    launches {}: ", work.launches);
      if (work.flops > 0) {
        text_ += fmt::format("{:.0f} FLOPs of {} in {}, ", work.flops,
                             work.unit == Work::Unit::product ? "products" : "attention", dtype_name(work.dtype));
      }
      text_ += fmt::format("{:.0f} bytes read and written\n", work.bytes);
    }
  }

  std::string name(int buffer) const {
    const Buffer& b = code_->buffers.at(static_cast<std::size_t>(buffer));
    const std::string label = b.label < 0 ? "" : label_text(program_, b.segment, b.label);
    if (buffer >= slots_) return label;
    return fmt::format("${}{}{}", buffer, label.empty() ? "" : " ", label);
  }

  /// The bytes of a slot are those of what it is bound to.
  std::string with_bytes(int buffer) const {
    if (buffer < slots_) return name(buffer);
    const Buffer& b = code_->buffers.at(static_cast<std::size_t>(buffer));
    return fmt::format("{}, {} bytes of {}{}{}", name(buffer), b.bytes.n, category_name(b.category),
                       b.space == Space::device ? "" : fmt::format(" in {} memory", space_name(b.space)),
                       beside(b.stream));
  }

  const Program& program_;
  const Code* code_ = nullptr;  // that is written
  int slots_ = 0;
  std::optional<Phase> phase_;  // of the section so far
  std::string text_;
};

}  // namespace

std::string program_text(const Program& program) { return Text(program).take(); }

}  // namespace vramfit::program
