// What `vramfit run --events DIR` leaves of a rank, read back as a ledger.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "program/ledger/ledger.h"

namespace vramfit {

/// The events of steps 0 (load) to `last_step`, of lines such as {"label": "head: shard", "category": "parameters",
/// "bytes": 512, "phase": "load", "step": 0}; what is freed has negative bytes. Throws InputError naming `file` and the
/// line.
Ledger ledger_from_lines(std::string_view text, const std::string& file, std::int32_t last_step);

}  // namespace vramfit
