// Recurrent networks: what they need besides tensors, and their weights: PyTorch asks where each matrix lies and copies
// there. All matrices come first, layer by layer, input's before hidden's, gate by gate; then all biases in the same
// order.
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "phantom/core/visibility.h"
#include "phantom/cudnn/tensors.h"
#include "phantom/cudnn/workspaces.h"
#include "phantom/generate/generated.h"

namespace {

using vramfit::phantom::cudnn::data_bytes;
using vramfit::phantom::cudnn::packed;
using vramfit::phantom::cudnn::set_shape;

struct Network {
  int gates = 1, directions = 1, layers = 0;
  std::int64_t input = 0, hidden = 0, projected = 0;
  bool input_matrices = true, biases = true, dropout = false;
  cudnnDataType_t type{};

  std::int64_t input_of(int pseudo_layer) const { return pseudo_layer < directions ? input : projected * directions; }
  int pseudo_layers() const { return layers * directions; }
  // Of one gate's matrix; linear layers [0, gates) work on the input, [gates, 2 gates) on the hidden state, the last
  // projects.
  std::int64_t columns(int pseudo_layer, int linear) const {
    if (linear < gates) return input_matrices || pseudo_layer >= directions ? input_of(pseudo_layer) : 0;
    return linear < 2 * gates ? projected : hidden;
  }
  std::int64_t rows(int linear) const { return linear < 2 * gates ? hidden : projected; }
  int linear_layers() const { return 2 * gates + (projected != hidden ? 1 : 0); }
};

struct Networks {
  std::mutex mutex;
  std::map<const void*, Network> of;
};

Networks& networks() {
  static auto* all = new Networks;
  return *all;
}

std::optional<Network> network_of(const void* handle) {
  const std::lock_guard lock(networks().mutex);
  const auto found = networks().of.find(handle);
  if (found == networks().of.end()) return std::nullopt;
  return found->second;
}

int gates_of(cudnnRNNMode_t mode) {
  switch (mode) {
    case CUDNN_LSTM:
      return 4;
    case CUDNN_GRU:
      return 3;
    case CUDNN_RNN_RELU:
    case CUDNN_RNN_TANH:
      break;
  }
  return 1;
}

// Elements before a matrix, or before a bias counted from the first bias.
std::int64_t matrix_offset(const Network& network, int pseudo_layer, int linear) {
  std::int64_t elements = 0;
  for (int layer = 0; layer <= pseudo_layer; ++layer) {
    const int until = layer == pseudo_layer ? linear : network.linear_layers();
    for (int each = 0; each < until; ++each) elements += network.rows(each) * network.columns(layer, each);
  }
  return elements;
}

std::int64_t bias_offset(const Network& network, int pseudo_layer, int linear) {
  return (std::int64_t{pseudo_layer} * 2 * network.gates + linear) * network.hidden;
}

void give(cudnnTensorDescriptor_t tensor, void** address, const void* space, std::int64_t elements,
          const Network& network, std::int64_t rows, std::int64_t columns) {
  const bool exists = rows > 0 && columns > 0;
  if (address != nullptr) {
    const std::size_t bytes = static_cast<std::size_t>(elements) * data_bytes(network.type);
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): the interface takes const and gives none
    auto* const base = static_cast<char*>(const_cast<void*>(space));
    *address = exists ? base + bytes : nullptr;
  }
  if (tensor != nullptr && exists) {
    set_shape(tensor, packed(network.type, CUDNN_TENSOR_NCHW, {1, static_cast<int>(rows), static_cast<int>(columns)}));
  }
}

}  // namespace

PHANTOM_EXPORT cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t* network) {
  if (network == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  auto* handle = new char;
  *network = reinterpret_cast<cudnnRNNDescriptor_t>(handle);
  const std::lock_guard lock(networks().mutex);
  networks().of[handle];
  return CUDNN_STATUS_SUCCESS;
}

PHANTOM_EXPORT cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t network) {
  const std::lock_guard lock(networks().mutex);
  if (networks().of.erase(network) != 0) delete reinterpret_cast<char*>(network);
  return CUDNN_STATUS_SUCCESS;
}

PHANTOM_EXPORT cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t handle, cudnnRNNAlgo_t, cudnnRNNMode_t mode,
                                                      cudnnRNNBiasMode_t bias, cudnnDirectionMode_t direction,
                                                      cudnnRNNInputMode_t input_mode, cudnnDataType_t type,
                                                      cudnnDataType_t, cudnnMathType_t, int32_t input, int32_t hidden,
                                                      int32_t projected, int32_t layers,
                                                      cudnnDropoutDescriptor_t dropout, uint32_t) {
  const std::lock_guard lock(networks().mutex);
  const auto found = networks().of.find(handle);
  if (found == networks().of.end()) return CUDNN_STATUS_BAD_PARAM;
  Network& network = found->second;
  network.gates = gates_of(mode);
  network.directions = direction == CUDNN_BIDIRECTIONAL ? 2 : 1;
  network.layers = layers;
  network.input = input;
  network.hidden = hidden;
  network.projected = projected;
  network.input_matrices = input_mode == CUDNN_LINEAR_INPUT;
  network.biases = bias != CUDNN_RNN_NO_BIAS;
  network.type = type;
  float probability = 0;
  vramfit::phantom::generated::fetch(dropout, "dropout", 0, &probability);
  network.dropout = probability > 0;
  return CUDNN_STATUS_SUCCESS;
}

PHANTOM_EXPORT cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t, cudnnRNNDescriptor_t handle, size_t* bytes) {
  const auto network = network_of(handle);
  if (!network || bytes == nullptr) return CUDNN_STATUS_BAD_PARAM;
  std::int64_t elements = matrix_offset(*network, network->pseudo_layers() - 1, network->linear_layers());
  if (network->biases) elements += bias_offset(*network, network->pseudo_layers(), 0);
  *bytes = static_cast<std::size_t>(elements) * data_bytes(network->type);
  return CUDNN_STATUS_SUCCESS;
}

PHANTOM_EXPORT cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t, cudnnRNNDescriptor_t handle,
                                                       cudnnForwardMode_t mode, cudnnRNNDataDescriptor_t data,
                                                       size_t* workspace, size_t* reserve) {
  using vramfit::phantom::cudnn::RecurrentShape;
  namespace generated = vramfit::phantom::generated;
  const auto network = network_of(handle);
  if (!network) return CUDNN_STATUS_BAD_PARAM;
  int steps = 0, batch = 0;
  generated::fetch(data, "maxSeqLength", 0, &steps);
  generated::fetch(data, "batchSize", 0, &batch);
  const RecurrentShape shape{
      .steps = steps,
      .batch = batch,
      .hidden = network->hidden,
      .layers = network->layers,
      .directions = network->directions,
      .gates = network->gates,
      .matrix_elements = matrix_offset(*network, network->pseudo_layers() - 1, network->linear_layers()),
      .element_bytes = static_cast<std::int64_t>(data_bytes(network->type)),
      .has_dropout = network->dropout};
  if (workspace != nullptr) {
    *workspace = static_cast<size_t>(
        generated::workspace("cuDNN recurrent network", vramfit::phantom::cudnn::recurrent_bound(shape)));
  }
  if (reserve != nullptr) {
    const bool is_training = mode == CUDNN_FWD_MODE_TRAINING;
    *reserve = is_training ? static_cast<size_t>(vramfit::phantom::cudnn::recurrent_reserve(shape)) : 0;
  }
  return CUDNN_STATUS_SUCCESS;
}

PHANTOM_EXPORT cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t, cudnnRNNDescriptor_t handle, int32_t pseudo_layer,
                                                     size_t, const void* space, int32_t linear,
                                                     cudnnTensorDescriptor_t matrix, void** matrix_address,
                                                     cudnnTensorDescriptor_t bias, void** bias_address) {
  const auto network = network_of(handle);
  if (!network || pseudo_layer < 0 || pseudo_layer >= network->pseudo_layers()) return CUDNN_STATUS_BAD_PARAM;
  if (linear < 0 || linear > 2 * network->gates) return CUDNN_STATUS_BAD_PARAM;
  const bool exists = linear < network->linear_layers();
  give(matrix, matrix_address, space, matrix_offset(*network, pseudo_layer, linear), *network,
       exists ? network->rows(linear) : 0, network->columns(pseudo_layer, linear));
  const std::int64_t first_bias = matrix_offset(*network, network->pseudo_layers() - 1, network->linear_layers());
  const bool has_bias = network->biases && linear < 2 * network->gates;
  give(bias, bias_address, space, first_bias + bias_offset(*network, pseudo_layer, linear), *network,
       has_bias ? network->hidden : 0, 1);
  return CUDNN_STATUS_SUCCESS;
}
