// A checkpoint without weights: the files that a loader reads, whose tensors are zeros that take no room on the disk.
#pragma once

#include <cstdint>
#include <string>

#include "base/text/units.h"
#include "model_specs/dtype.h"
#include "model_specs/spec.h"

namespace vramfit {

/// The model's configuration without what only vramfit's catalog says of it, and with the weights' dtype.
std::string config_text(const ModelSpec& spec, Dtype dtype);

/// The header of a safetensors file of all parameters and persistent buffers, with its length in front; and the bytes
/// of the data that follows it. Throws ModelError if they overflow 64 bits.
struct WeightsHeader {
  std::string bytes;
  Bytes data;
  std::int64_t tensors = 0;
};
WeightsHeader weights_header(const ModelSpec& spec, Dtype dtype);

/// `path`, which must not be there, with the header and a hole for the data. Throws FaultError and leaves nothing
/// behind.
void write_sparse(const std::string& path, const WeightsHeader& header);

/// `folder`, new or empty, with all that a loader reads: config.json, model.safetensors, and a tokenizer if it is
/// wanted. Returns the header. Throws InputError if the folder is not empty, ModelError, or FaultError.
WeightsHeader write_checkpoint(const ModelSpec& spec, Dtype dtype, const std::string& folder, bool with_tokenizer);

/// tokenizer.json and tokenizer_config.json: each byte of a text is a token, and there is one token more, which begins,
/// ends and pads. Throws ModelError if the vocabulary has less than 257 tokens.
std::string tokenizer_text(const ModelSpec& spec);
std::string tokenizer_config_text(const ModelSpec& spec);

}  // namespace vramfit
