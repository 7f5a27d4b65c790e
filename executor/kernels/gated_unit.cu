// SwiGLU, GEGLU and the like, each tensor read and written once, by the formulas of CPU ranks. A thread has eight
// elements at a time, read and written at once where all tensors begin at multiples of 16 bytes.
#include <initializer_list>

#include "executor/kernels/functions.h"
#include "executor/kernels/numbers.cuh"
#include "executor/ops/activation_values.h"

namespace vramfit::cuda {

namespace {

constexpr int kPackOfGate = 8;

bool are_aligned(std::initializer_list<const void*> pointers) {
  constexpr std::uintptr_t kBytes = 16;
  return std::all_of(pointers.begin(), pointers.end(),
                     [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % kBytes == 0; });
}

using Eight = Part<kPackOfGate>;

template <typename T, typename Act>
struct Forward {
  const GatedUnit& unit;
  void* output;

  __device__ void at(const Eight& part) const {
    const auto gate = part.read(static_cast<const T*>(unit.gate)), up = part.read(static_cast<const T*>(unit.up));
    Pack<T, kPackOfGate> out;
    for (int k = 0; k < kPackOfGate; ++k) {
      out.at[k] = rounded<T>(Act::value(to_float(gate.at[k])) * to_float(up.at[k]));
    }
    part.write(static_cast<T*>(output), out);
  }
};

template <typename T, typename Act>
struct Backward {
  const GatedUnit& unit;
  const GatedUnitGradients& gradients;

  __device__ void at(const Eight& part) const {
    const auto gate = part.read(static_cast<const T*>(unit.gate)), up = part.read(static_cast<const T*>(unit.up));
    const auto output = part.read(static_cast<const T*>(gradients.output));
    if (gradients.gate != nullptr) {
      auto all = gradients.add_gate ? part.read(static_cast<const T*>(gradients.gate)) : Pack<T, kPackOfGate>{};
      for (int k = 0; k < kPackOfGate; ++k) {
        const float of_act = to_float(output.at[k]) * to_float(up.at[k]);
        all.at[k] = put(all.at[k], of_act * Act::derivative(to_float(gate.at[k])), gradients.add_gate);
      }
      part.write(static_cast<T*>(gradients.gate), all);
    }
    if (gradients.up == nullptr) return;
    auto all = gradients.add_up ? part.read(static_cast<const T*>(gradients.up)) : Pack<T, kPackOfGate>{};
    for (int k = 0; k < kPackOfGate; ++k) {
      all.at[k] = put(all.at[k], to_float(output.at[k]) * Act::value(to_float(gate.at[k])), gradients.add_up);
    }
    part.write(static_cast<T*>(gradients.up), all);
  }
};

template <typename T, typename Act>
__global__ void gate_forward(GatedUnit unit, void* output, bool is_aligned) {
  const Forward<T, Act> work{unit, output};
  each_part<kPackOfGate>(unit.elements, is_aligned, [&](const Eight& part) { work.at(part); });
}

template <typename T, typename Act>
__global__ void gate_gradients(GatedUnit unit, GatedUnitGradients gradients, bool is_aligned) {
  const Backward<T, Act> work{unit, gradients};
  each_part<kPackOfGate>(unit.elements, is_aligned, [&](const Eight& part) { work.at(part); });
}

template <typename F>
int with_types(const GatedUnit& unit, const F& f) {
  return with_number(unit.number, [&](auto number) {
    switch (unit.activation) {
      case Activation::gelu_tanh:
        return f(number, kernels::GeluTanh{});
      case Activation::gelu_erf:
        return f(number, kernels::GeluErf{});
      case Activation::relu:
        return f(number, kernels::Relu{});
      case Activation::silu:
        break;
    }
    return f(number, kernels::Silu{});
  });
}

}  // namespace

int gate(const GatedUnit& unit, void* output, Stream stream) {
  const bool is_aligned = are_aligned({unit.gate, unit.up, output});
  const unsigned blocks = blocks_for((unit.elements + kPackOfGate - 1) / kPackOfGate);
  return with_types(unit, [&](auto number, auto act) {
    return launch(gate_forward<decltype(number), decltype(act)>, blocks, kThreads, stream, unit, output, is_aligned);
  });
}

int gate_backward(const GatedUnit& unit, const GatedUnitGradients& gradients, Stream stream) {
  const bool is_aligned = are_aligned({unit.gate, unit.up, gradients.output, gradients.gate, gradients.up});
  const unsigned blocks = blocks_for((unit.elements + kPackOfGate - 1) / kPackOfGate);
  return with_types(unit, [&](auto number, auto act) {
    return launch(gate_gradients<decltype(number), decltype(act)>, blocks, kThreads, stream, unit, gradients,
                  is_aligned);
  });
}

}  // namespace vramfit::cuda
