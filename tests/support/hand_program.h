// Programs written by hand, an instruction a line, for what no job lowers to yet.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "program/program.h"

namespace vramfit::testing {

class HandProgram {
 public:
  HandProgram() { begin(program::Section::Kind::load); }

  /// What the buffer is, not yet allocated.
  int buffer(const std::string& label, std::int64_t bytes, program::Buffer as = {}) {
    as.bytes = Bytes{bytes};
    as.label = label_number(label);
    code().buffers.push_back(as);
    return static_cast<int>(code().buffers.size()) - 1;
  }
  /// Allocated and written: in load, what lives as long as the job.
  int resident(const std::string& label, std::int64_t bytes, program::Buffer as = {}) {
    const int made = buffer(label, bytes, as);
    allocate(made).run("load", {{made, program::How::write}}, {.launches = 0});
    std::get<program::Run>(code().instructions.back()).kernel = program::Kernel::load_shard;
    return made;
  }

  HandProgram& begin(program::Section::Kind kind) {
    end();
    made_.sections.push_back({.kind = kind, .begin = code().instructions.size()});
    return *this;
  }
  HandProgram& allocate(int buffer) { return write(program::Allocate{buffer}); }
  HandProgram& free(int buffer) { return write(program::Free{buffer}); }
  HandProgram& empty_cache() { return write(program::EmptyCache{}); }

  /// A kernel that takes `seconds` on tests/support/unit_card.h.
  HandProgram& run(const std::string& name, const std::vector<program::Access>& accesses, double seconds) {
    return run(name, accesses, Work{.bytes = seconds});
  }
  HandProgram& run(const std::string& name, const std::vector<program::Access>& accesses, const Work& work) {
    return write(program::Run{.kernel = program::Kernel::call,
                              .op = label_number(name),
                              .accesses = listed(accesses),
                              .inside = {},
                              .work = worked({work})});
  }
  /// The last of an update's works: with it, what `gradient` holds is spent.
  HandProgram& update(const std::vector<program::Access>& accesses, const std::vector<Work>& work) {
    return write(program::Run{
        .kernel = program::Kernel::update, .accesses = listed(accesses), .inside = {}, .work = worked(work)});
  }
  /// Over the host's link, on the stream of that way, which takes as many seconds as bytes.
  HandProgram& copy(int from, int to) {
    const program::Buffer& source = code().buffers[static_cast<std::size_t>(from)];
    const bool comes = source.space != program::Space::device;
    return write(
        program::Run{.kernel = program::Kernel::copy,
                     .accesses = listed({{from, program::How::read}, {to, program::How::write}}),
                     .inside = {},
                     .work = worked({{.unit = Work::Unit::host_link, .bytes = static_cast<double>(source.bytes.n)}}),
                     .stream = comes ? Stream::to_device : Stream::to_host});
  }

  /// The token. Without bytes, all that the buffers hold.
  int start(program::Start start, const std::vector<program::Access>& accesses) {
    start.token = made_.tokens++;
    start.accesses = listed(accesses);
    if (start.bytes.n == 0) {
      for (const program::Access& access : accesses) {
        start.bytes += code().buffers[static_cast<std::size_t>(access.buffer)].bytes;
      }
    }
    write(start);
    return start.token;
  }
  int record(Stream stream) {
    write(program::Record{made_.tokens, stream});
    return made_.tokens++;
  }
  HandProgram& wait(int token, Stream stream = Stream::compute) { return write(program::Wait{token, stream}); }
  /// `stream` waits for all that `other` has been given so far.
  HandProgram& wait_for(Stream stream, Stream other) { return wait(record(other), stream); }

  program::Program take() {
    end();
    return made_;
  }
  program::Program& program() { return made_; }

 private:
  program::Code& code() { return made_.main; }
  void end() {
    if (!made_.sections.empty()) made_.sections.back().end = code().instructions.size();
  }
  HandProgram& write(const program::Instruction& instruction) {
    code().instructions.push_back(instruction);
    return *this;
  }
  int label_number(const std::string& text) {
    made_.labels.push_back(text);
    return static_cast<int>(made_.labels.size()) - 1;
  }
  program::Range listed(const std::vector<program::Access>& accesses) {
    const auto first = static_cast<std::uint32_t>(code().accesses.size());
    code().accesses.insert(code().accesses.end(), accesses.begin(), accesses.end());
    return {first, static_cast<std::uint32_t>(accesses.size())};
  }
  program::Range worked(const std::vector<Work>& work) {
    const auto first = static_cast<std::uint32_t>(code().work.size());
    code().work.insert(code().work.end(), work.begin(), work.end());
    return {first, static_cast<std::uint32_t>(work.size())};
  }

  program::Program made_;
};

}  // namespace vramfit::testing
