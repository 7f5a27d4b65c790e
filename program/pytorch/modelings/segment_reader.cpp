#include "program/pytorch/modelings/segment_reader.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "job/fields/job_fields.h"

namespace vramfit::eager {

void append_parameters(std::vector<int>& list, const LinearParameters& of) {
  for (const int parameter : {of.weight, of.bias, of.lora_a, of.lora_b, of.magnitudes}) {
    if (parameter >= 0) list.push_back(parameter);
  }
}

void append_parameters(std::vector<int>& list, const NormParameters& of) {
  append_parameters(list, LinearParameters{.weight = of.weight, .bias = of.bias});
}

void refuse_model(const Job& job, const std::string& what) {
  const bool has_few_models = is_torchtitan(job) || job.modeling == Modeling::torchtune;
  throw NotModelled(fmt::format("--modeling {} for {}{}", job_field_named("modeling").get(job), what,
                                has_few_models ? " (--stack transformers has rules for more models)" : ""));
}

void require_usual_attention(const Graph& graph, const Job& job) {
  const std::string& asked = graph.library_attention;
  if (asked.empty() || job.attention != Attention::automatic) return;
  const char* flag = asked == "eager"               ? " (--attention math is)"
                     : asked == "flash_attention_2" ? " (--attention flash-attn is)"
                                                    : "";
  refuse_model(job, fmt::format("attn_implementation {} of the model's configuration{}", printable(asked), flag));
}

const Op& SegmentReader::take(OpKind kind) {
  if (!is_next(kind)) refuse();
  return segment_.ops[next_++];
}

void SegmentReader::require_end() const {
  if (next_ != segment_.ops.size()) refuse();
}

NormParameters SegmentReader::layer_norm() {
  const Op& op = take(OpKind::layer_norm);
  return {.weight = op.parameters[0].parameter, .bias = op.parameters[1].parameter};
}

LinearParameters SegmentReader::with_adapter(const Op& linear) {
  LinearParameters made{.weight = linear.parameters.front().parameter,
                        .bias = linear.parameters.size() > 1 ? linear.parameters[1].parameter : -1};
  if (!is_next(OpKind::lora)) return made;
  const Op& adapter = take(OpKind::lora);
  made.lora_a = adapter.parameters[0].parameter;
  made.lora_b = adapter.parameters[1].parameter;
  if (is_next(OpKind::magnitude)) made.magnitudes = take(OpKind::magnitude).parameters.front().parameter;
  return made;
}

}  // namespace vramfit::eager
