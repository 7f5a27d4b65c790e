#include "phantom/values/core.h"

#include "phantom/core/contents.h"
#include "phantom/core/context.h"
#include "phantom/core/operations.h"
#include "phantom/core/record.h"
#include "phantom/core/session.h"

using namespace vramfit::phantom;  // NOLINT(google-build-using-namespace): the functions are C's

namespace {

constexpr std::int64_t kAssumptions = VRAMFIT_FROM_GHOSTS - 1;

}  // namespace

VramfitValueSettings vramfit_value_settings() {
  const Settings& settings = session().settings;
  return {.is_on = settings.computes_values ? 1 : 0,
          .worst_routing = settings.worst_routing ? 1 : 0,
          .integer_bytes = settings.integer_bytes,
          .float_bytes = settings.float_bytes,
          .selected_share = settings.selected_share,
          .routing_seed = settings.routing_seed};
}

std::int32_t vramfit_values_are_wanted() { return session().settings.computes_values ? 1 : 0; }

std::int64_t vramfit_value_known(const void* address, std::int64_t bytes) {
  const Knowledge knowledge = knowledge_of(address, bytes);
  if (!knowledge.is_known) return VRAMFIT_UNKNOWN;
  return knowledge.assumptions | (knowledge.invented_by != nullptr ? std::int64_t{VRAMFIT_FROM_GHOSTS} : 0);
}

void vramfit_value_set(void* address, std::int64_t bytes, std::int64_t assumptions) {
  written_by_operation(address, bytes,
                       {.is_known = assumptions != VRAMFIT_UNKNOWN,
                        .invented_by = assumptions != VRAMFIT_UNKNOWN && (assumptions & VRAMFIT_FROM_GHOSTS) != 0
                                           ? inventor("a collective that it was computed from")
                                           : nullptr,
                        .assumptions = static_cast<std::uint32_t>(assumptions & kAssumptions)});
}

const char* vramfit_value_writer(const void* address) {
  const std::string* const name = writer_of(address);
  return name == nullptr ? nullptr : name->c_str();
}

void vramfit_value_written_by(void* address, std::int64_t bytes, const char* kernel) {
  written_unknown(address, bytes, kernel);
}

void vramfit_peaks_seen(std::int64_t requested_bytes, std::int64_t allocated_bytes) {
  count_peaks(current_card(), requested_bytes, allocated_bytes);
}

void* vramfit_value_view(void* address, std::int64_t bytes, std::int64_t limit_bytes) {
  return host_view(address, bytes, limit_bytes);
}

std::int32_t vramfit_operation_begin(std::int64_t real_bytes) { return begin_operation(real_bytes) ? 1 : 0; }
std::int32_t vramfit_operation_end() { return end_operation() ? 1 : 0; }
void vramfit_answer_leave(std::int64_t count) { leave_answer(count); }
std::int32_t vramfit_answer_withdraw() { return withdraw_answer() ? 1 : 0; }

void vramfit_value_read(const VramfitRead* read) {
  count_assumed_read(read->assumptions, read->steers != 0, read->bytes, std::string(read->kind) + " at " + read->place);
}
