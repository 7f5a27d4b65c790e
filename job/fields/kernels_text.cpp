#include "job/fields/kernels_text.h"

#include <algorithm>
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

constexpr std::array kAxolotlParts{
    AxolotlPart{"mlp", &AxolotlParts::mlp},
    AxolotlPart{"qkv", &AxolotlParts::qkv},
    AxolotlPart{"o", &AxolotlParts::o},
};

/// set(part, whether it is on) for each "PART=on|off" of a list, none of which is there twice.
template <typename Parts, typename Set>
void read_parts(std::string_view list, const Parts& parts, const Set& set) {
  std::vector<std::string> known, seen;
  for (const auto& part : parts) known.emplace_back(part.name);
  for (const std::string& text : split_list(list)) {
    const auto [name, value] = key_and_value(text);
    const auto part = std::ranges::find(parts, name, [](const auto& each) { return std::string(each.name); });
    if (part == parts.end()) unknown_value(name, known);
    if (value != "on" && value != "off") unknown_value(value, {"on", "off"});
    if (std::ranges::find(seen, name) != seen.end()) throw InputError(fmt::format("{}: is there twice", name));
    seen.push_back(name);
    set(*part, value == "on");
  }
}

AxolotlParts read_axolotl(std::string_view text) {
  AxolotlParts parts{.mlp = true, .qkv = true, .o = true};
  if (text.empty()) return parts;
  read_parts(text.substr(1), kAxolotlParts, [&](const AxolotlPart& part, bool is_on) { parts.*part.value = is_on; });
  if (!parts.any()) throw InputError("axolotl: all of its parts are off; leave it out");
  return parts;
}

std::string axolotl_text(const AxolotlParts& parts) {
  std::string text = "axolotl";
  char separator = ':';
  for (const AxolotlPart& part : kAxolotlParts) {
    if (parts.*part.value) continue;
    text += fmt::format("{}{}=off", separator, part.name);
    separator = ',';
  }
  return text;
}

}  // namespace

std::span<const LigerPart> liger_parts() { return kParts; }
std::span<const AxolotlPart> axolotl_parts() { return kAxolotlParts; }

std::string get_kernels(const Job& job) {
  if (job.kernels == KernelSource::libtorch) return job.axolotl.any() ? axolotl_text(job.axolotl) : "";
  std::string text = name_in(kKernels, job.kernels);
  char separator = ':';
  for (const LigerPart& part : kParts) {
    if (!(job.liger.*part.value)) continue;
    text += fmt::format("{}{}={}", separator, part.name, *(job.liger.*part.value) ? "on" : "off");
    separator = ',';
  }
  return job.axolotl.any() ? text + "+" + axolotl_text(job.axolotl) : text;
}

void set_kernels(Job& job, std::string_view value) {
  constexpr std::string_view kWithParts = "liger:", kAxolotl = "axolotl";
  LigerParts parts;
  AxolotlParts of_adapters;
  const std::size_t plus = std::min(value.find('+'), value.size());
  const std::string_view last = plus < value.size() ? value.substr(plus + 1) : value;
  const bool is_axolotl = last == kAxolotl || last.starts_with("axolotl:");
  if (plus < value.size() && !is_axolotl) unknown_value(std::string(last), {std::string(kAxolotl)});
  if (is_axolotl) {
    of_adapters = read_axolotl(last.substr(kAxolotl.size()));
    value = plus < value.size() ? value.substr(0, plus) : "libtorch";
    if (value == "vramfit") throw InputError("vramfit+axolotl: axolotl's kernels are alone or beside Liger's");
  }
  if (value.starts_with(kWithParts)) {
    read_parts(value.substr(kWithParts.size()), kParts,
               [&](const LigerPart& part, bool is_on) { parts.*part.value = is_on; });
    value = "liger";
  }
  std::vector<std::string> known = names_of(kKernels);
  if (std::ranges::find(known, value) == known.end()) {
    known.emplace_back(kAxolotl);
    unknown_value(value, known);
  }
  job.kernels = named(kKernels, value);
  job.liger = parts;
  job.axolotl = of_adapters;
  if (parts.cross_entropy.value_or(false) && parts.fused_linear_cross_entropy.value_or(false)) {
    throw InputError("cross_entropy and fused_linear_cross_entropy exclude each other");
  }
}

}  // namespace vramfit
