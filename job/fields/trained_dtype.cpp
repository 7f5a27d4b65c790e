#include "job/fields/trained_dtype.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "job/fields/field_text.h"
#include "job/fields/job_field_names.h"
#include "job/parameters/quantization.h"

namespace vramfit {

Dtype trained_dtype(std::string_view value) {
  if (value == "fp8") {
    throw InputError(
        "\"fp8\" is no type of parameters (--precision fp8 is for products; --quantization fp8 is how a card keeps "
        "matrices of layers)");
  }
  const Dtype dtype = parse_dtype(value);
  if (dtype != Dtype::f32 && dtype != Dtype::bf16 && dtype != Dtype::f16) {
    throw InputError(fmt::format("\"{}\" is not a type to train in (known: fp32, bf16, fp16)", printable(value)));
  }
  return dtype;
}

std::string get_master_dtype(const Job& job) {
  return job.master_dtype ? std::string(dtype_name(*job.master_dtype)) : "";
}

void set_master_dtype(Job& job, std::string_view value) {
  if (value != "fp16") {
    throw InputError(
        fmt::format("\"{}\" is no dtype of numbers with a scale for each matrix (known: fp16; without the flag all "
                    "parameters have that of --storage-dtype)",
                    printable(value)));
  }
  job.master_dtype = Dtype::f16;
}

std::string get_gradient_dtype(const Job& job) {
  if (!job.gradient_dtype) return "";
  if (!keeps_fp8_gradients(job)) return std::string(dtype_name(*job.gradient_dtype));
  return job.sends_fp8_gradients ? "fp8-sent" : "fp8";
}

void set_gradient_dtype(Job& job, std::string_view value) {
  constexpr std::array kPlain{Dtype::f32, Dtype::bf16, Dtype::f16};
  const auto* const plain = std::ranges::find(kPlain, value, dtype_name);
  const bool is_fp8 = value == "fp8" || value == "fp8-sent";
  if (plain == kPlain.end() && !is_fp8) {
    throw InputError(
        fmt::format("\"{}\" is no dtype that gradients have by themselves (known: fp32, bf16, fp16, fp8, fp8-sent; "
                    "without the flag they have that of --storage-dtype)",
                    printable(value)));
  }
  job.gradient_dtype = is_fp8 ? Dtype::f8_e4m3 : *plain;
  job.sends_fp8_gradients = value == "fp8-sent";
}

std::string get_frozen_dtype(const Job& job) {
  return job.frozen_dtype ? std::string(dtype_name(*job.frozen_dtype)) : "";
}

void set_frozen_dtype(Job& job, std::string_view value) { job.frozen_dtype = trained_dtype(value); }

std::string get_quantization(const Job& job) {
  return quantization_named(job.quantization) == nullptr ? "" : job.quantization;
}

void set_quantization(Job& job, std::string_view value) {
  std::vector<std::string> known = names_of(kQuantizations);
  known.emplace_back("none");
  if (std::ranges::find(known, value) == known.end()) unknown_value(value, known);
  job.quantization = value;
}

}  // namespace vramfit
