// The library's functions, each of which is in the source of its kernels.
#pragma once

#include "executor/kernels/kernels.h"

namespace vramfit::cuda {

int count_update(const AdamwUpdate& update, Stream stream);
int update_plain(const AdamwUpdate& update, const PlainAverages& averages, Stream stream);
int update_rounding(const AdamwUpdate& update, const PlainAverages& averages, const RoundedStretch& stretch,
                    Stream stream);
int update_coded(const AdamwUpdate& update, const CodedAverages& averages, Stream stream);
int begin_scaled(const AdamwUpdate& update, const ScaledAverages& averages, Stream stream);
int update_scaled(const AdamwUpdate& update, const ScaledAverages& averages, const ScaledStretch& stretch,
                  Stream stream);
int adafactor_sums(const AdafactorUpdate& update, const AdafactorParameter& parameter, Stream stream);
int adafactor_change_sums(const AdafactorUpdate& update, const AdafactorParameter& parameter, Stream stream);
int adafactor_update(const AdafactorUpdate& update, const AdafactorParameter& parameter, Stream stream);
int read_scaled(const ScaledRange& range, void* to, Number number, Stream stream);
int round_scaled(const float* from, const ScaledRange& range, Stream stream);
int dequantize(const CodedMatrix& matrix, Stream stream);
int gate(const GatedUnit& unit, void* output, Stream stream);
int gate_backward(const GatedUnit& unit, const GatedUnitGradients& gradients, Stream stream);
int rotate(const Rotation& rotation, Stream stream);
int drop(const DroppedElements& dropped, Stream stream);
int cross_entropy(const LossRows& rows, float* losses, double scale, float* loss, Stream stream);
int cross_entropy_backward(const LossRows& rows, const LogitGradients& gradients, Stream stream);
int rms_norm(const NormRows& rows, const void* residual, void* output, Stream stream);
int rms_norm_backward(const NormRows& rows, const NormGradients& gradients, Stream stream);

}  // namespace vramfit::cuda
