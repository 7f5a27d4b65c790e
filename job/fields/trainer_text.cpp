#include "job/fields/trainer_text.h"

#include "job/fields/field_text.h"

namespace vramfit {

std::string get_find_unused(const Job& job) {
  if (!job.find_unused_parameters) return "";
  return *job.find_unused_parameters ? "on" : "off";
}

void set_find_unused(Job& job, std::string_view value) {
  if (value.empty()) return job.find_unused_parameters.reset();
  if (value != "on" && value != "off") unknown_value(value, {"on", "off"});
  job.find_unused_parameters = value == "on";
}

std::string get_packing(const Job& job) { return job.packs_documents ? "bfd" : ""; }

void set_packing(Job& job, std::string_view value) {
  if (value != "none" && value != "bfd") unknown_value(value, {"none", "bfd"});
  job.packs_documents = value == "bfd";
}

}  // namespace vramfit
