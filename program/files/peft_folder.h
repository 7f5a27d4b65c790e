// Folders of LoRA adapters as PEFT writes them: adapter_config.json and adapter_model.safetensors. Nothing in them is
// run or unpickled.
#pragma once

#include <string>
#include <vector>

#include "job/job.h"
#include "model_specs/hub/safetensors.h"
#include "program/files/peft_config.h"

namespace vramfit {

struct PeftFolder {
  std::string path;
  PeftConfig config;
  std::string weights;                // path of the file
  std::vector<StoredTensor> tensors;  // of it
  std::vector<std::string> modules;   // that have adapters, sorted: "model.layers.0.self_attn.q_proj"
};

/// Reads the configuration and the header of the weights. Throws InputError for a configuration that
/// peft_config_from_json refuses, and ModelError for weights that are missing, malformed, pickled, or not pairs of
/// matrices called base_model.model.MODULE.lora_A.weight (R, inputs) and lora_B.weight (outputs, R), with
/// MODULE.lora_magnitude_vector (outputs) where the configuration says use_dora.
PeftFolder read_peft_folder(const std::string& path);

/// The targets of a job that trains these adapters, as --lora-targets takes them; none: all linears.
std::vector<std::string> job_targets(const PeftFolder& folder);

/// Fills in what isn't set of a job: the method, and of the adapters rank, alpha, dropout, targets, rslora and dora.
/// `fixed` holds the names of the fields that were set, to which those of the folder are added. Throws InputError for a
/// field that contradicts the folder; dropout, which says how to train, may differ.
void take_adapters(const PeftFolder& folder, Job& job, std::vector<std::string>& fixed);

/// Throws InputError unless a resolved job trains adapters of this rank and scale.
void check_adapters(const PeftFolder& folder, const Job& job);

}  // namespace vramfit
