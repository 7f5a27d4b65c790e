#include "tests/executor/kernels/emulated_cuda.h"

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <stdexcept>
#include <vector>

vramfit::emulated::Place threadIdx, blockIdx, blockDim, gridDim;

namespace vramfit::emulated {

namespace {

constexpr std::size_t kStack = std::size_t{64} << 10U;
constexpr std::size_t kWarp = 32;

enum class State { runs, waits_for_block, waits_for_warp, ended };

struct Fiber {
  ucontext_t context{};
  std::unique_ptr<std::array<char, kStack>> stack = std::make_unique_for_overwrite<std::array<char, kStack>>();
  State state = State::ended;
  std::int32_t given = 0;  // to the warp
};

class Block;
Block* running = nullptr;  // makecontext takes no pointer
bool is_backwards = false;

class Block {
 public:
  Block(std::size_t threads, const std::function<void()>& kernel) : kernel_(kernel), fibers_(threads) {}

  void run() {
    running = this;
    for (Fiber& fiber : fibers_) start(fiber);
    while (std::ranges::any_of(fibers_, [](const Fiber& f) { return f.state != State::ended; })) {
      for (std::size_t turn = 0; turn < fibers_.size(); ++turn) {
        resume(is_backwards ? fibers_.size() - 1 - turn : turn);
      }
      if (!release()) throw std::logic_error("threads wait for each other at different places");
    }
    running = nullptr;
  }

  void wait(State state) {
    Fiber& fiber = fibers_[threadIdx.x];
    fiber.state = state;
    swapcontext(&fiber.context, &main_);
  }

  std::int32_t exchange(std::int32_t given, unsigned lane) {
    fibers_[threadIdx.x].given = given;
    wait(State::waits_for_warp);
    const std::int32_t taken = fibers_[threadIdx.x / kWarp * kWarp + lane].given;
    wait(State::waits_for_warp);  // until all have read what was given
    return taken;
  }

 private:
  static void enter() {
    running->kernel_();
    running->fibers_[threadIdx.x].state = State::ended;
  }

  void start(Fiber& fiber) {
    fiber.state = State::runs;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack->data();
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = &main_;
    makecontext(&fiber.context, enter, 0);
  }

  void resume(std::size_t thread) {
    if (fibers_[thread].state != State::runs) return;
    threadIdx.x = static_cast<unsigned>(thread);
    swapcontext(&main_, &fibers_[thread].context);
  }

  /// Of a range whose threads that go on all wait so: lets them go on.
  bool release(std::size_t begin, std::size_t end, State waited) {
    bool any = false;
    for (std::size_t i = begin; i < end; ++i) {
      if (fibers_[i].state == State::ended) continue;
      if (fibers_[i].state != waited) return false;
      any = true;
    }
    for (std::size_t i = begin; any && i < end; ++i) {
      if (fibers_[i].state == waited) fibers_[i].state = State::runs;
    }
    return any;
  }

  bool release() {
    bool any = release(0, fibers_.size(), State::waits_for_block);
    for (std::size_t begin = 0; begin < fibers_.size(); begin += kWarp) {
      any |= release(begin, std::min(begin + kWarp, fibers_.size()), State::waits_for_warp);
    }
    return any || std::ranges::all_of(fibers_, [](const Fiber& f) { return f.state == State::ended; });
  }

  const std::function<void()>& kernel_;
  std::vector<Fiber> fibers_;
  ucontext_t main_{};
};

}  // namespace

void run(unsigned blocks, int threads, const std::function<void()>& kernel) {
  gridDim.x = blocks;
  blockDim.x = static_cast<unsigned>(threads);
  Block block(static_cast<std::size_t>(threads), kernel);
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) block.run();
}

void run_backwards(bool backwards) { is_backwards = backwards; }

void wait_for_block() { running->wait(State::waits_for_block); }

std::int32_t exchange(std::int32_t given, unsigned lane) { return running->exchange(given, lane); }

std::uint16_t to_half(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x), size = bits & 0x7FFFFFFFU;
  const std::uint32_t sign = bits >> 16U & 0x8000U;
  if (size > 0x7F800000U) return static_cast<std::uint16_t>(0x7FFFU);  // what isn't a number
  std::uint32_t half = 0;
  if (size < 0x38800000U) {  // less than the least normal number: a multiple of 2^-24
    half = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(std::bit_cast<float>(size), 24)));
  } else {
    half = std::min(size - 0x38000000U + 0xFFFU + (size >> 13U & 1U), 0x7C00U << 13U) >> 13U;
  }
  return static_cast<std::uint16_t>(sign | half);
}

float from_half(std::uint16_t bits) {
  const int exponent = bits >> 10U & 0x1F, fraction = bits & 0x3FF;
  const float sign = (bits & 0x8000U) != 0 ? -1.0F : 1.0F;
  if (exponent == 0x1F) {
    return fraction == 0 ? sign * std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(fraction + 0x400), exponent - 25);
}

}  // namespace vramfit::emulated
