// How much memory cuDNN's convolutions and recurrent networks may ask for to work in. Only the library knows the sizes;
// what its algorithms keep there is documented, and these are bounds that follow.
#pragma once

#include <cstdint>
#include <vector>

namespace vramfit::phantom::cudnn {

/// Dimensions as the interface has them: x [N, C, ...], w [K, C / groups, ...], y [N, K, ...].
struct ConvolutionShape {
  std::vector<std::int64_t> x, w, y;
  std::int64_t element_bytes = 4;
};

/// Of a convolution in any direction; 0 if the shapes are none of one.
///
/// The documentation of cudnnConvolutionFwdAlgo_t (and BwdData, BwdFilter) names what each algorithm keeps: the input
/// as an explicit matrix (GEMM), the three tensors transformed (FFT and FFT_TILING, with a stride of 1;
/// WINOGRAD_NONFUSED), or small tables.
/// Tensor cores want channels last, in multiples of 8 elements, so there may be copies of the tensors besides:
/// https://github.com/pytorch/pytorch/issues/31500 met a workspace of 48 GiB where two tensors of one channel and 2 GiB
/// would take 32 GiB so.
std::int64_t convolution_bound(const ConvolutionShape& shape);

struct RecurrentShape {
  std::int64_t steps = 0, batch = 0, hidden = 0, layers = 0, directions = 1, gates = 1;
  std::int64_t matrix_elements = 0, element_bytes = 4;
  bool has_dropout = false;
};

/// What backward needs of forward, with the known amount of a P100: for each element of the output, of each layer an
/// LSTM's gates and its cell, a GRU's 6 numbers, a plain network's one, and what goes from layer to layer. In
/// https://github.com/pytorch/pytorch/issues/2895, networks of 123 inputs, 320 hidden numbers and 4 layers (from their
/// 3038090 and 2279370 parameters) took 736000000 and 864000000 bytes: 23 and 27 numbers of 4 bytes for each of 25000
/// rows. With dropout, what it gives is taken to be kept as well.
std::int64_t recurrent_reserve(const RecurrentShape& shape);

/// The same networks worked in 17730560 and 13169920 bytes, which is their matrices and 6 (or fewer) numbers for each
/// gate of a batch of 50. This is twice as much, with 12 numbers a gate, as nobody says what the batch was.
std::int64_t recurrent_bound(const RecurrentShape& shape);

}  // namespace vramfit::phantom::cudnn
