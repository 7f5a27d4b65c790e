// One JSON line an event, in trace.PID.jsonl, when the session asks for it.
#pragma once

#include <cstdint>
#include <string_view>

#include "phantom/core/visibility.h"

namespace vramfit::phantom {

PHANTOM_CORE bool tracing();
/// {"event": what, "card": card, "address": address, "bytes": bytes, "status": status}
PHANTOM_CORE void trace(std::string_view what, int card, const void* address, std::int64_t bytes, int status = 0);
/// {"event": what, "name": name}
PHANTOM_CORE void trace_name(std::string_view what, std::string_view name);

}  // namespace vramfit::phantom
