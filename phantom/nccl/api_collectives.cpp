// Collectives, sends and receives, groups and reduction operators.
#include <fmt/format.h>

#include <array>
#include <cstring>

#include "base/error.h"
#include "phantom/core/streams.h"
#include "phantom/nccl/api.h"
#include "phantom/nccl/buffers.h"

namespace vramfit::phantom {

namespace {

struct Arguments {
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  ncclDataType_t type{};
  ncclComm_t communicator = nullptr;
  cudaStream_t stream = nullptr;
};

ncclResult_t invalid(Call call, std::string_view what) {
  return refuse(ncclInvalidArgument, fmt::format("{}: {}", call_name(call), what));
}

// A stand-in moves what a script can hold; counts beyond that are a script's negative numbers.
constexpr std::size_t kMostElements = std::size_t{1} << 48;

ncclResult_t prepare(Call call, const Arguments& arguments, int root, Operation& operation) {
  ncclComm* const communicator = communicator_of(arguments.communicator);
  if (communicator == nullptr) return no_communicator(call_name(call));
  if (communicator->error() != ncclSuccess) return communicator->error();
  if (element_bytes(arguments.type) == 0)
    return invalid(call, fmt::format("invalid type {}", static_cast<int>(arguments.type)));
  if (arguments.count > kMostElements) return invalid(call, fmt::format("invalid count {}", arguments.count));
  if (root < 0 || root >= communicator->ranks()) return invalid(call, fmt::format("invalid root or peer {}", root));
  Stream* const stream = stream_of(arguments.stream, communicator->card());
  if (stream == nullptr) return invalid(call, "invalid stream");
  operation.call = call;
  operation.send = arguments.send;
  operation.receive = arguments.receive;
  operation.count = static_cast<std::int64_t>(arguments.count);
  operation.reduction.type = arguments.type;
  operation.root = root;
  operation.communicator = communicator;
  operation.stream = stream;
  return ncclSuccess;
}

ncclResult_t run(Call call, const Arguments& arguments, int root = 0) {
  Operation operation;
  const ncclResult_t result = prepare(call, arguments, root, operation);
  return result == ncclSuccess ? issue(std::move(operation)) : result;
}

bool read_scale(const ScaleOperator& scale, Operation& operation) {
  operation.scale = scale.value;
  if (scale.address == nullptr) return true;
  const std::int64_t bytes = element_bytes(scale.type);
  try {
    const std::byte* const value = view(scale.address, bytes);
    operation.scale.assign(value, value + bytes);
    operation.scale_knowledge = knowledge_at(scale.address, bytes);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

ncclResult_t run_reduction(Call call, const Arguments& arguments, ncclRedOp_t reduction, int root = 0) {
  constexpr std::array kCombine{Combine::sum, Combine::product, Combine::maximum, Combine::minimum, Combine::average};
  Operation operation;
  const ncclResult_t result = prepare(call, arguments, root, operation);
  if (result != ncclSuccess) return result;
  if (reduction >= 0 && reduction < ncclNumOps) {
    operation.reduction.combine = kCombine[static_cast<std::size_t>(reduction)];
    return issue(std::move(operation));
  }
  const auto scale = operation.communicator->scale(reduction);
  if (!scale) return invalid(call, fmt::format("invalid reduction operation {}", static_cast<int>(reduction)));
  if (scale->type != arguments.type) return invalid(call, "the reduction operation was made for another type");
  if (!read_scale(*scale, operation)) return invalid(call, "the reduction operation's scalar is not device memory");
  return issue(std::move(operation));
}

}  // namespace

}  // namespace vramfit::phantom

using vramfit::phantom::Call;
using vramfit::phantom::run;
using vramfit::phantom::run_reduction;

PHANTOM_EXPORT ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                          ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return run_reduction(Call::all_reduce, {sendbuff, recvbuff, count, datatype, comm, stream}, op);
}

PHANTOM_EXPORT ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                       ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return run_reduction(Call::reduce, {sendbuff, recvbuff, count, datatype, comm, stream}, op, root);
}

PHANTOM_EXPORT ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                                              ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                              cudaStream_t stream) {
  return run_reduction(Call::reduce_scatter, {sendbuff, recvbuff, recvcount, datatype, comm, stream}, op);
}

PHANTOM_EXPORT ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                          int root, ncclComm_t comm, cudaStream_t stream) {
  return run(Call::broadcast, {sendbuff, recvbuff, count, datatype, comm, stream}, root);
}

PHANTOM_EXPORT ncclResult_t ncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                                      cudaStream_t stream) {
  return run(Call::broadcast, {buff, buff, count, datatype, comm, stream}, root);
}

PHANTOM_EXPORT ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                                          ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream) {
  return run(Call::all_gather, {sendbuff, recvbuff, sendcount, datatype, comm, stream});
}

PHANTOM_EXPORT ncclResult_t ncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                         ncclComm_t comm, cudaStream_t stream) {
  return run(Call::all_to_all, {sendbuff, recvbuff, count, datatype, comm, stream});
}

PHANTOM_EXPORT ncclResult_t ncclGather(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                       int root, ncclComm_t comm, cudaStream_t stream) {
  return run(Call::gather, {sendbuff, recvbuff, count, datatype, comm, stream}, root);
}

PHANTOM_EXPORT ncclResult_t ncclScatter(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                        int root, ncclComm_t comm, cudaStream_t stream) {
  return run(Call::scatter, {sendbuff, recvbuff, count, datatype, comm, stream}, root);
}

PHANTOM_EXPORT ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
                                     ncclComm_t comm, cudaStream_t stream) {
  return run(Call::send, {sendbuff, nullptr, count, datatype, comm, stream}, peer);
}

PHANTOM_EXPORT ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                                     cudaStream_t stream) {
  return run(Call::receive, {nullptr, recvbuff, count, datatype, comm, stream}, peer);
}

PHANTOM_EXPORT ncclResult_t ncclGroupStart() {
  vramfit::phantom::start_group();
  return ncclSuccess;
}

PHANTOM_EXPORT ncclResult_t ncclGroupEnd() { return vramfit::phantom::end_group(); }

PHANTOM_EXPORT ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* simInfo) {
  if (!vramfit::phantom::drop_group()) {
    return vramfit::phantom::refuse(ncclInvalidUsage, "ncclGroupSimulateEnd: not in a group call.");
  }
  if (simInfo != nullptr) simInfo->estimatedTime = NCCL_UNDEF_FLOAT;  // there is no time here
  return ncclSuccess;
}

PHANTOM_EXPORT ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                                     ncclScalarResidence_t residence, ncclComm_t comm) {
  using namespace vramfit::phantom;  // NOLINT(google-build-using-namespace): within one function
  ncclComm* const communicator = communicator_of(comm);
  if (communicator == nullptr) return no_communicator("ncclRedOpCreatePreMulSum");
  const std::int64_t bytes = element_bytes(datatype);
  if (op == nullptr || scalar == nullptr || bytes == 0) {
    return refuse(ncclInvalidArgument, "ncclRedOpCreatePreMulSum: null pointer or invalid type");
  }
  ScaleOperator scale{.type = datatype, .value = {}, .address = nullptr, .destroyed = false};
  if (residence == ncclScalarHostImmediate) {
    const auto* const value = static_cast<const std::byte*>(scalar);
    scale.value.assign(value, value + bytes);
  } else {
    scale.address = scalar;
  }
  *op = static_cast<ncclRedOp_t>(communicator->add_scale(std::move(scale)));
  return ncclSuccess;
}

PHANTOM_EXPORT ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  ncclComm* const communicator = vramfit::phantom::communicator_of(comm);
  if (communicator == nullptr) return vramfit::phantom::no_communicator("ncclRedOpDestroy");
  if (communicator->destroy_scale(op)) return ncclSuccess;
  return vramfit::phantom::refuse(ncclInvalidArgument, "ncclRedOpDestroy: invalid reduction operation");
}
