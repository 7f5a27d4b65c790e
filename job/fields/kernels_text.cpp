#include "job/fields/kernels_text.h"

#include <array>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "job/fields/job_field_names.h"

namespace vramfit {

namespace {

constexpr std::array kParts{
    LigerPart{"rope", &LigerParts::rope},
    LigerPart{"rms_norm", &LigerParts::rms_norm},
    LigerPart{"swiglu", &LigerParts::swiglu},
    LigerPart{"geglu", &LigerParts::geglu},
    LigerPart{"cross_entropy", &LigerParts::cross_entropy},
    LigerPart{"fused_linear_cross_entropy", &LigerParts::fused_linear_cross_entropy},
};

void set_part(LigerParts& parts, const std::string& text) {
  const auto [name, value] = key_and_value(text);
  std::vector<std::string> known;
  for (const LigerPart& part : kParts) {
    known.emplace_back(part.name);
    if (name != part.name) continue;
    if (value != "on" && value != "off") unknown_value(value, {"on", "off"});
    if (parts.*part.value) throw InputError(fmt::format("{}: is there twice", name));
    parts.*part.value = value == "on";
    return;
  }
  unknown_value(name, known);
}

}  // namespace

std::span<const LigerPart> liger_parts() { return kParts; }

std::string get_kernels(const Job& job) {
  if (job.kernels == KernelSource::libtorch) return "";
  std::string text = name_in(kKernels, job.kernels);
  char separator = ':';
  for (const LigerPart& part : kParts) {
    if (!(job.liger.*part.value)) continue;
    text += fmt::format("{}{}={}", separator, part.name, *(job.liger.*part.value) ? "on" : "off");
    separator = ',';
  }
  return text;
}

void set_kernels(Job& job, std::string_view value) {
  constexpr std::string_view kWithParts = "liger:";
  LigerParts parts;
  if (value.starts_with(kWithParts)) {
    for (const std::string& part : split_list(value.substr(kWithParts.size()))) set_part(parts, part);
    value = "liger";
  }
  job.kernels = named(kKernels, value);
  job.liger = parts;
  if (parts.cross_entropy.value_or(false) && parts.fused_linear_cross_entropy.value_or(false)) {
    throw InputError("cross_entropy and fused_linear_cross_entropy exclude each other");
  }
}

}  // namespace vramfit
