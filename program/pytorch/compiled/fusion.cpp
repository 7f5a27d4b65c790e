#include "program/pytorch/compiled/fusion.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <variant>
#include <vector>

namespace vramfit::eager {

namespace {

using program::Access;
using program::How;
using program::Program;
using program::Run;

constexpr std::array<std::string_view, 23> kGenerated{"aten::_fused_rms_norm",
                                                      "aten::_fused_rms_norm_backward",
                                                      "aten::_to_copy",
                                                      "aten::add",
                                                      "aten::cat",
                                                      "aten::clone",
                                                      "aten::cos",
                                                      "aten::div",
                                                      "aten::mean",
                                                      "aten::mul",
                                                      "aten::native_dropout",
                                                      "aten::native_dropout_backward",
                                                      "aten::neg",
                                                      "aten::nll_loss_forward",
                                                      "aten::nll_loss_backward",
                                                      "aten::_log_softmax",
                                                      "aten::_log_softmax_backward_data",
                                                      "aten::pow",
                                                      "aten::rsqrt",
                                                      "aten::silu",
                                                      "aten::silu_backward",
                                                      "aten::sin",
                                                      "aten::slice_backward"};
constexpr std::string_view kSum = "aten::sum";

/// A value is computed anew where its sources have at most this many times its bytes: a row's scale or a mask beside
/// what it applies to is no reason to store the product.
constexpr double kMostSources = 1.25;

bool is_backward_or_forward(const program::Section& section) {
  using Kind = program::Section::Kind;
  return section.kind == Kind::first || section.kind == Kind::middle || section.kind == Kind::last;
}

class Fusion {
 public:
  explicit Fusion(Program& program)
      : program_(program), code_(program.main), is_stored_(code_.accesses.size(), false) {}

  void fuse(const program::Section& section) {
    find_stored(section);
    sources_.clear();
    for (std::size_t i = section.begin; i < section.end; ++i) {
      program::Instruction& instruction = code_.instructions[i];
      if (const auto* allocate = std::get_if<program::Allocate>(&instruction)) sources_.erase(allocate->buffer);
      auto* const run = std::get_if<Run>(&instruction);
      if (run != nullptr && is_generated(*run)) {
        add(*run);
      } else if (ends_kernel(instruction)) {
        close();
      }
    }
    close();
  }

 private:
  using Buffers = std::set<int>;

  double bytes_of(int buffer) const { return static_cast<double>(code_.buffers[at(buffer)].bytes.n); }
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }

  template <typename F>
  void for_each_access(const Run& run, const F& f) const {
    for (std::uint32_t i = 0; i < run.accesses.count; ++i) {
      const std::size_t index = run.accesses.first + i;
      f(code_.accesses[index], index);
    }
  }

  /// A complex product is told by its label alone (Torch::rotate).
  bool is_complex(const Run& run) const {
    bool is_complex = false;
    for_each_access(run, [&](const Access& access, std::size_t) {
      const int label = code_.buffers[at(access.buffer)].label;
      if (access.how != How::write || label < 0) return;
      const std::string_view text = program_.labels[at(label)];
      is_complex = is_complex || text.ends_with("complex mul") || text.ends_with("complex mul gradient");
    });
    return is_complex;
  }

  bool is_generated(const Run& run) const {
    if (run.kernel != program::Kernel::call || run.stream != Stream::compute || run.work.count != 1) return false;
    const Work& work = code_.work[run.work.first];
    if (work.unit != Work::Unit::none || work.bytes == 0) return false;
    const std::string_view name = program_.labels[at(run.op)];
    return (name == kSum || std::ranges::find(kGenerated, name) != kGenerated.end()) && !is_complex(run);
  }

  static bool ends_kernel(const program::Instruction& instruction) {
    return std::holds_alternative<Run>(instruction) || std::holds_alternative<program::Start>(instruction) ||
           std::holds_alternative<program::Wait>(instruction) || std::holds_alternative<program::HostRead>(instruction);
  }

  /// Which of the values that generated kernels make are needed by others: by calls that stay, or after the section.
  void find_stored(const program::Section& section) {
    std::vector<bool> wanted(code_.buffers.size(), false), is_freed(code_.buffers.size(), false);
    for (std::size_t i = section.end; i-- > section.begin;) {
      const program::Instruction& instruction = code_.instructions[i];
      if (const auto* freed = std::get_if<program::Free>(&instruction)) {
        is_freed[at(freed->buffer)] = true;
      } else if (const auto* allocate = std::get_if<program::Allocate>(&instruction)) {
        wanted[at(allocate->buffer)] = is_freed[at(allocate->buffer)] = false;
      } else if (const auto* run = std::get_if<Run>(&instruction)) {
        note(*run, wanted, is_freed);
      } else if (const auto* start = std::get_if<program::Start>(&instruction)) {
        for (std::uint32_t a = 0; a < start->accesses.count; ++a) {
          wanted[at(code_.accesses[start->accesses.first + a].buffer)] = true;
        }
      }
    }
  }

  void note(const Run& run, std::vector<bool>& wanted, const std::vector<bool>& is_freed) {
    const bool generated = is_generated(run);
    for_each_access(run, [&](const Access& access, std::size_t index) {
      const std::size_t buffer = at(access.buffer);
      if (!generated) {
        wanted[buffer] = wanted[buffer] || access.how != How::write;
      } else if (access.how == How::write) {
        is_stored_[index] = wanted[buffer] || !is_freed[buffer];
      }
    });
  }

  void add(Run& run) {
    Buffers inputs;
    for_each_access(run, [&](const Access& access, std::size_t) {
      if (access.how == How::write) return;
      const auto known = sources_.find(access.buffer);
      if (known == sources_.end()) {
        inputs.insert(access.buffer);
      } else {
        inputs.insert(known->second.begin(), known->second.end());
      }
    });
    double source_bytes = 0;
    for (const int input : inputs) source_bytes += bytes_of(input);
    for_each_access(run, [&](const Access& access, std::size_t index) {
      if (access.how != How::write) return;
      if (is_stored_[index] || source_bytes > kMostSources * bytes_of(access.buffer)) {
        store(access.buffer, inputs);
      } else {
        sources_[access.buffer] = inputs;
      }
    });
    run.work.count = 0;
    if (first_ == nullptr) first_ = &run;
  }

  void store(int buffer, const Buffers& inputs) {
    sources_.erase(buffer);
    for (const int input : inputs) {
      if (!written_.contains(input)) read_.insert(input);
    }
    written_.insert(buffer);
    bytes_ += bytes_of(buffer);
    ++kernels_;
  }

  void close() {
    if (first_ != nullptr && kernels_ > 0) {
      for (const int buffer : read_) bytes_ += bytes_of(buffer);
      first_->work = {static_cast<std::uint32_t>(code_.work.size()), 1};
      code_.work.push_back({.launches = kernels_, .bytes = bytes_});
    }
    first_ = nullptr;
    read_.clear();
    written_.clear();
    bytes_ = 0;
    kernels_ = 0;
  }

  Program& program_;
  program::Code& code_;
  std::vector<bool> is_stored_;     // by access that writes
  std::map<int, Buffers> sources_;  // of values that aren't stored, by buffer: what they are computed from
  Run* first_ = nullptr;            // of the calls that are being fused, which is given the work of all
  Buffers read_, written_;          // by the kernels that they become
  double bytes_ = 0;
  std::int64_t kernels_ = 0;
};

}  // namespace

void fuse_calls(Program& program) {
  Fusion fusion(program);
  for (const program::Section& section : program.sections) {
    if (is_backward_or_forward(section)) fusion.fuse(section);
  }
}

}  // namespace vramfit::eager
