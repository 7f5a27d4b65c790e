// Choices of a job that haven't been made yet. A bound that takes them as open holds whatever they turn out to be, so
// that one bound decides a whole group of jobs.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace vramfit {

enum class OpenChoice : std::uint8_t {
  micro_batch,
  loss,
  accumulate,
  checkpointing,
  reshard_head,
  prefetch,
  reduce_finish
};

class OpenChoices {
 public:
  constexpr OpenChoices() = default;
  constexpr OpenChoices(std::initializer_list<OpenChoice> choices) {
    for (const OpenChoice choice : choices) add(choice);
  }
  constexpr void add(OpenChoice choice) { bits_ |= bit(choice); }
  constexpr bool has(OpenChoice choice) const { return (bits_ & bit(choice)) != 0; }

 private:
  static constexpr std::uint32_t bit(OpenChoice choice) { return 1U << static_cast<unsigned>(choice); }
  std::uint32_t bits_ = 0;
};

}  // namespace vramfit
