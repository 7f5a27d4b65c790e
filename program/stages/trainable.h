// How parameters are held: which of them --freeze leaves to train, and the dtype of each.
#pragma once

#include <vector>

#include "job/job.h"
#include "job/parameters/quantization.h"
#include "model_specs/graph.h"

namespace vramfit {

/// Parameters that are trained, by index: those that `--freeze` leaves, and adapters. With adapters and no `--freeze`,
/// nothing but them.
std::vector<bool> trainable_parameters(const Graph& graph, const Job& job);

/// For a run that saves its adapters alone: throws InputError unless the job has adapters and trains nothing else,
/// which such a folder would lack.
void require_adapters_alone(const Graph& graph, const Job& job);

/// A parameter between steps.
struct HeldParameter {
  bool trainable = true;
  Dtype dtype = Dtype::f32;                    // uint8 if quantized
  const Quantization* quantization = nullptr;  // a frozen matrix may be
  const Quantization* trained_as = nullptr;    // how the card has a trained matrix whose master is in host memory
  bool is_scaled = false;                      // --master-dtype fp16: numbers of `dtype`, and a scale
  bool has_fp8_gradient = false;               // --gradient-dtype fp8
};
/// By index.
std::vector<HeldParameter> held_parameters(const Graph& graph, const Job& job);

/// Segments that backward runs through: those from the lowest with a trainable parameter on.
std::vector<bool> segments_with_backward(const Graph& graph, const Job& job);
/// Likewise where it is known which parameters are trained.
std::vector<bool> segments_with_backward(const Graph& graph, const std::vector<bool>& trainable);

}  // namespace vramfit
