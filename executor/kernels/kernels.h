// What the library of own CUDA kernels offers (docs/kernels.md): functions that launch, on the caller's stream, and
// return a cudaError_t. All pointers are the device's. Neither CUDA's headers nor LibTorch's are needed to call them.
#pragma once

#include <cstdint>

#include "executor/optimizers/adam_numbers.h"

namespace vramfit::cuda {

enum class Number : std::uint8_t { f32, bf16, f16 };

using Stream = void*;  // cudaStream_t

/// An update of AdamW over flat tensors.
struct AdamwUpdate {
  void* parameters;
  const void* gradients;
  Number number, gradient;  // of parameters, and of gradients
  std::int64_t elements;
  float* steps;                   // counted up first
  const float* gradient_divisor;  // null: none
  const float* found_inf;         // 1: nothing is changed or counted; null: none
  AdamRates rates;
};

/// Averages as numbers.
struct PlainAverages {
  void *first, *second;
  Number number;  // f32 or bf16
};

/// A part of the elements in which parameter i, counted from `first` on, is rounded by word i of the stream `key`.
struct RoundedStretch {
  std::int64_t offset, elements;
  std::int64_t first;
  std::uint64_t key;
};

/// As adamw-8bit, adamw-4bit and adamw-fp8-blocks keep them.
enum class StateCodes : std::uint8_t { eight_bits, four_bits, e4m3 };

/// Averages as codes in blocks, of which there are whole ones.
struct CodedAverages {
  std::uint8_t *first, *second;
  float *first_scales, *second_scales;
  StateCodes kind;
};

/// What an update with scales knows of a parameter: its largest new averages, by their bits, and its scales before.
struct ScaledNumbers {
  std::int32_t largest_first, largest_second;
  float first_scale, second_scale;
};

/// Averages as numbers of FP8 (e4m3) and of fp16, each with a scale for what is there of each parameter.
struct ScaledAverages {
  std::uint8_t* first;
  void* second;
  float *first_scales, *second_scales;  // [parameters]
  std::int64_t parameters;
  ScaledNumbers* numbers;  // [parameters], scratch
};

/// A parameter's elements, which begin at a multiple of four.
struct ScaledStretch {
  std::int64_t parameter, offset, elements;
};

/// An update of Adafactor, of which a parameter is done after the other.
struct AdafactorRates {
  double learning_rate, beta2_decay, eps1, eps2, update_clip, weight_decay;
};
struct AdafactorUpdate {
  void* parameters;
  const void* gradients;
  Number number, gradient;        // of parameters, and of gradients
  const float* steps;             // this update counted
  const float* gradient_divisor;  // null: none
  const float* found_inf;         // 1: nothing is changed, and sums are 0; null: none
  AdafactorRates rates;
  double* partial;  // [2 * thread blocks of the parameter with the most rows], scratch
};
/// A thread block takes so many rows at a time, a vector being one; a parameter has no more blocks than these.
inline constexpr int kAdafactorRowsOfBlock = 8, kAdafactorBlocks = 512;

/// What a rank has of a parameter: rows from `offset` on, of `all_rows` on all ranks. A vector has one column.
struct AdafactorParameter {
  std::int64_t offset, rows, columns, all_rows;
  float* rows_averages;     // [rows]; of a vector null
  float* columns_averages;  // [columns]; of a vector [rows]
  float* sums;              // [columns + 2], or of a vector [1]: program/optimizers/adafactor.h
  float* change_sum;        // of the squares of what elements lose, before the factor that all have
};

/// Numbers of fp16, or of FP8 (e4m3), that are multiplied by one scale.
struct ScaledRange {
  void* stored;
  bool is_e4m3;
  float* scale;
  std::int64_t elements;
};

/// Places in a table of 16 numbers, whole numbers, or numbers of FP8 (e4m3).
enum class Codes : std::uint8_t { normal_float, int8, e4m3 };

/// A rank's rows of a matrix in codes, at `stored`, where QuantizedParts says what lies where.
struct CodedMatrix {
  const std::uint8_t* stored;
  std::int64_t codes_begin, scales_begin, offset_begin;
  std::int64_t elements, capacity;  // of its rows; with those of padding, which become zeros
  std::int64_t row_elements;
  Codes codes;
  std::int64_t block;        // elements that share a scale; 0: those of a row
  std::int64_t scale_block;  // scales of 8 bits that share one of 32; 0: all have 32
  void* into;                // [capacity]
  Number number;
};

enum class Activation : std::uint8_t { silu, gelu_tanh, gelu_erf, relu };

/// act(gate) * up, element by element.
struct GatedUnit {
  const void *gate, *up;
  Number number;
  std::int64_t elements;
  Activation activation;
};
/// Gradients that aren't wanted are null; they may lie over gate and up.
struct GatedUnitGradients {
  const void* output;
  void *gate, *up;
  bool add_gate, add_up;  // to what is there
};

/// Heads of `dim` numbers in rows, the first 2 * half of which are turned by the angles of the row's position.
struct Rotation {
  const void* from;
  void* to;  // may be `from`
  Number number;
  std::int64_t rows, from_stride, to_stride;
  int heads, dim, half;
  const void *cos, *sin;  // [sequence, half]
  Number table;
  std::int64_t sequence;
  bool backwards, add;  // to what is there
};

/// Elements of which a random mask keeps some, times `scale`: element i, counted from `first` on, where the upper 53
/// bits of word i of the stream `key` are below the threshold.
struct DroppedElements {
  const void* from;
  void* to;  // may be `from`
  Number number;
  std::int64_t elements;
  std::uint64_t key;
  std::int64_t first;
  std::uint64_t threshold;
  float scale;
};

/// Rows of logits [rows, columns] without gaps, and of each its label and where its log-sum-exp goes or is. Losses are
/// those of executor/ops/cross_entropy_torch.h.
struct LossRows {
  const void* logits;
  Number number;
  const std::int64_t* labels;
  std::int64_t ignored;  // a label whose row has no loss
  float* lse;
  std::int64_t rows, columns;
  double smoothing, z;
};
struct LogitGradients {
  void* target;  // [rows, columns]; may be the logits
  float scale;
  const float* device_scale;  // a further factor; null: none
  float softcap;              // logits are softcap tanh(x / softcap), and the gradient is x's; 0: they are x
  bool add;                   // to what is there
};

/// Rows [rows, columns] without gaps: each is divided by its root mean square, of which the reciprocal is kept, and
/// multiplied by weight + plus.
struct NormRows {
  void* x;
  const void* weight;  // [columns]
  Number number;
  std::int64_t rows, columns;
  float eps, plus;
  float* rstd;  // [rows]
};
/// Of x and of the weight; one that isn't wanted is null.
struct NormGradients {
  const void* output;
  void* input;  // may be `output`
  bool add_input;
  void* weight;
  bool add_weight;  // to what is there
  // Where both are wanted: scratch for the sums of as many blocks, at most as many as there are rows.
  float* partial;  // [partial_rows, columns]
  std::int64_t partial_rows;
};

struct Kernels {
  /// Counts the update unless it is skipped; the functions after it read the count.
  int (*count_update)(const AdamwUpdate& update, Stream stream);
  int (*update_plain)(const AdamwUpdate& update, const PlainAverages& averages, Stream stream);
  /// Parameters are bf16.
  int (*update_rounding)(const AdamwUpdate& update, const PlainAverages& averages, const RoundedStretch& stretch,
                         Stream stream);
  int (*update_coded)(const AdamwUpdate& update, const CodedAverages& averages, Stream stream);
  /// Counts the update unless it is skipped, and fills the scratch, for update_scaled of each parameter.
  int (*begin_scaled)(const AdamwUpdate& update, const ScaledAverages& averages, Stream stream);
  int (*update_scaled)(const AdamwUpdate& update, const ScaledAverages& averages, const ScaledStretch& stretch,
                       Stream stream);
  /// Moves averages of rows and finds a parameter's first sums (program/optimizers/adafactor.h); then averages of
  /// columns or of a vector, and the last sum; then the update.
  int (*adafactor_sums)(const AdafactorUpdate& update, const AdafactorParameter& parameter, Stream stream);
  int (*adafactor_change_sums)(const AdafactorUpdate& update, const AdafactorParameter& parameter, Stream stream);
  int (*adafactor_update)(const AdafactorUpdate& update, const AdafactorParameter& parameter, Stream stream);
  int (*read_scaled)(const ScaledRange& range, void* to, Number number, Stream stream);
  /// Into fp16, with the scale of the largest number.
  int (*round_scaled)(const float* from, const ScaledRange& range, Stream stream);
  int (*dequantize)(const CodedMatrix& matrix, Stream stream);
  int (*gate)(const GatedUnit& unit, void* output, Stream stream);
  int (*gate_backward)(const GatedUnit& unit, const GatedUnitGradients& gradients, Stream stream);
  int (*rotate)(const Rotation& rotation, Stream stream);
  int (*drop)(const DroppedElements& dropped, Stream stream);
  /// Adds `scale` times the sum of the rows' losses to `loss`; `losses` [rows] is scratch.
  int (*cross_entropy)(const LossRows& rows, float* losses, double scale, float* loss, Stream stream);
  int (*cross_entropy_backward)(const LossRows& rows, const LogitGradients& gradients, Stream stream);
  /// x becomes x + residual first, if there is one.
  int (*rms_norm)(const NormRows& rows, const void* residual, void* output, Stream stream);
  int (*rms_norm_backward)(const NormRows& rows, const NormGradients& gradients, Stream stream);
};

/// Of this header: a library that was built from another one isn't used.
inline constexpr int kInterface = 11;

/// The one symbol of the library, "vramfit_kernels"; null for another interface.
using Find = const Kernels* (*)(int interface_version);

}  // namespace vramfit::cuda
