// Runs a program on one rank: keeps a tensor for each buffer that is allocated, and calls a function for each run.
// What is allocated, freed and called, and in which order, is the program's.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <array>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "executor/meter/arena.h"
#include "executor/meter/meter.h"
#include "executor/sharding/process_groups.h"
#include "program/program.h"
#include "program/readers/expand.h"

namespace vramfit {

inline std::size_t at_index(int index) { return static_cast<std::size_t>(index); }

/// The tensors of one run, in the order that program::Kernel names.
class Operands {
 public:
  Operands(const program::Run& run, const program::Place& place, std::vector<at::Tensor>& tensors)
      : run_(run), place_(place), tensors_(tensors) {}

  const program::Run& run() const { return run_; }
  /// The segment whose block the run is in; -1 in the main list.
  int segment() const { return place_.segment; }
  std::size_t size() const { return run_.accesses.count; }
  bool has(std::size_t i) const { return access(i).buffer >= 0; }
  bool adds(std::size_t i) const { return access(i).how == program::How::add; }
  /// Flat as it was allocated, or in the shape in which a run left it here. Undefined for an operand that isn't there,
  /// and for one that the function allocates itself and leaves here.
  at::Tensor& operator[](std::size_t i) { return has(i) ? tensors_[number(i)] : none_; }
  /// What the program views of it, in the view's shape; of an operand without a view, what [] gives. Undefined where
  /// that is.
  at::Tensor view(std::size_t i) { return program::Place::has_view(access(i)) ? part(i, 0) : (*this)[i]; }
  /// Of an operand with several views.
  std::size_t parts(std::size_t i) const { return static_cast<std::size_t>(place_.view_count(access(i))); }
  at::Tensor part(std::size_t i, std::size_t number);
  /// What the function is known to allocate by itself, so that the meter can name it.
  std::vector<ExpectedAllocation> expected() const;

 private:
  const program::Access& access(std::size_t i) const { return place_.code.accesses[run_.accesses.first + i]; }
  std::size_t number(std::size_t i) const { return static_cast<std::size_t>(place_.number(access(i).buffer)); }

  const program::Run& run_;
  const program::Place& place_;
  std::vector<at::Tensor>& tensors_;
  at::Tensor none_;
};

/// Must outlive what reads its tensors; the program and groups must outlive it.
class ProgramRunner {
 public:
  struct Inputs {
    const program::Program& lowered;
    ProcessGroups& groups;
    at::Device device;
    Arena* arena = nullptr;  // of the program's memory; null: none
    // False on phantom GPUs: the host computes nothing, and host memory that only the card or the CPU would fill stays
    // untouched, so that it takes none.
    bool has_values = true;
  };
  using Function = std::function<void(Operands&)>;

  explicit ProgramRunner(const Inputs& inputs);

  /// The function of a kernel; every kernel that the program runs needs one.
  void on(program::Kernel kernel, Function function) {
    functions_[static_cast<std::size_t>(kernel)] = std::move(function);
  }
  std::function<void(const program::Mark&)> on_mark;
  /// One pass of a section.
  void run(const program::Section& section);
  /// What a buffer of the main list holds; it stays valid, and undefined while the buffer isn't allocated.
  const at::Tensor& tensor(int buffer) const { return tensors_[static_cast<std::size_t>(buffer)]; }

  /// What the host has read of a buffer of the main list, most recently.
  double number(int buffer) const { return numbers_[static_cast<std::size_t>(buffer)]; }

  // Called by program::read_section.
  void read(const program::Allocate& what, const program::Place& place);
  void read(const program::Free& what, const program::Place& place);
  void read(const program::Run& run, const program::Place& place);
  void read(const program::Start& start, const program::Place& place);
  void read(const program::Record& record, const program::Place& place);
  void read(const program::Wait& wait, const program::Place& place);
  void read(const program::HostRead& what, const program::Place& place);
  void read(const program::Mark& mark, const program::Place& place);

 private:
  void expect(std::size_t requests, std::int64_t times);
  bool is_left_out(const program::Run& run, const program::Place& place) const;
  bool is_on_host(const program::Run& run, const program::Place& place) const;
  c10::Stream stream_of(Stream stream);
  std::vector<at::Tensor> tensors_of(const program::Start& start, const program::Place& place);

  Inputs in_;
  std::vector<at::Tensor> tensors_;  // by number of the buffer (program::Place)
  std::vector<Pending> pending_;     // by token
  // CUDA: by token, where it was recorded; by stream, those that are used.
  std::vector<std::optional<c10::Event>> recorded_;
  std::array<std::optional<c10::Stream>, kStreams> streams_;
  std::vector<double> numbers_;  // by buffer of the main list
  std::array<Function, program::kKernels> functions_;
};

}  // namespace vramfit
