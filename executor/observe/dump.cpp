#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <optional>

#include "base/error.h"
#include "base/json/json_writer.h"
#include "executor/meter/meter.h"
#include "executor/observe/dump_torch.h"
#include "executor/sharding/load_rows_torch.h"

namespace vramfit {

namespace {

std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (std::int64_t dim : shape) elements = checked_mul(elements, dim);
  return elements;
}

std::vector<UnitParameter> dumped(const UnitState& unit, bool trainable_only) {
  std::vector<UnitParameter> parameters = unit.unit().parameters;
  if (trainable_only) std::erase_if(parameters, [](const UnitParameter& p) { return !p.trainable; });
  return parameters;
}

std::vector<DumpedTensor> listed(const DumpContext& context, const std::vector<UnitState>& units, bool trainable_only) {
  std::vector<DumpedTensor> tensors;
  for (const UnitState& unit : units) {
    for (const UnitParameter& p : dumped(unit, trainable_only)) {
      const Parameter& parameter = context.graph.parameters[static_cast<std::size_t>(p.parameter)];
      tensors.push_back({parameter.name, parameter.shape});
    }
  }
  return tensors;
}

at::Tensor whole_on_host(const UnitParameter& p, int shard, const at::Tensor& stored) {
  at::Tensor values = at::empty({p.shard_elements}, at::kFloat);
  dequantize_on_cpu(quantized_rows(p, shard), stored.cpu(), values);
  return values;
}

/// The parts of all ranks, padded; zeros where there is none. A collective call.
at::Tensor gathered(const DumpContext& context, const UnitState& unit, const UnitParameter& p, const at::Tensor& part) {
  at::TensorOptions options = part.defined() ? part.options() : unit.shard(p).options();
  if (p.quantization != nullptr) options = options.dtype(at::kFloat);
  at::Tensor whole = at::zeros({p.padded_elements}, options);
  if (!part.defined()) return whole;
  const std::int64_t first = context.shard_group.rank() * p.shard_elements;
  at::Tensor own = whole.narrow(0, first, p.shard_elements);
  if (p.quantization == nullptr) {
    own.copy_(part);
  } else {
    own.copy_(whole_on_host(p, context.shard_group.rank(), part));
  }
  if (const Pending gathering = context.shard_group.all_gather({whole})) gathering->wait();
  return whole;
}

}  // namespace

// safetensors: 8 bytes little-endian header length, a JSON header, then the tensors' bytes.
SafetensorsWriter::SafetensorsWriter(const std::string& path, const std::vector<DumpedTensor>& tensors) : file_(path) {
  JsonWriter header;
  header.begin_object();
  std::int64_t offset = 0;
  for (const DumpedTensor& tensor : tensors) {
    header.key(tensor.name).begin_object().member("dtype", "F32").key("shape").begin_array();
    for (std::int64_t dim : tensor.shape) header.integer(dim);
    const std::int64_t end = checked_add(offset, 4 * elements_of(tensor.shape));
    header.end_array().key("data_offsets").begin_array().integer(offset).integer(end).end_array().end_object();
    offset = end;
  }
  std::string text = header.end_object().take();
  text.resize(static_cast<std::size_t>(round_up(static_cast<std::int64_t>(text.size()), 8)), ' ');
  const std::uint64_t length = text.size();
  file_.write({reinterpret_cast<const char*>(&length), sizeof length});
  file_.write(text);
}

void SafetensorsWriter::append(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.to(at::kCPU, at::kFloat).contiguous();
  file_.write({static_cast<const char*>(plain.const_data_ptr()), plain.nbytes()});
}

void dump_tensor(const std::string& name, const at::Tensor& tensor, const std::string& path) {
  const LabelScope scope(Category::temporaries, "dump");
  SafetensorsWriter writer(path, {{name, tensor.sizes().vec()}});
  writer.append(tensor);
  writer.close();
}

void dump_units(const DumpContext& context, const std::vector<UnitState>& units, PartOf part, bool trainable_only,
                const std::string& path) {
  const LabelScope scope(Category::temporaries, "dump");
  std::optional<SafetensorsWriter> writer;
  if (context.writes) writer.emplace(path, listed(context, units, trainable_only));
  for (const UnitState& unit : units) {
    for (const UnitParameter& p : dumped(unit, trainable_only)) {
      const at::Tensor whole = gathered(context, unit, p, part(unit, p));
      if (!writer) continue;
      const at::Tensor used = whole.narrow(0, 0, p.rows * p.row_elements);
      writer->append(context.divisor == 1 ? used : used.div(context.divisor));
    }
  }
  if (writer) writer->close();
}

}  // namespace vramfit
