// What `vramfit import` prints.
#pragma once

#include <string>

#include "cli/configs/import.h"
#include "cli/format/terminal.h"

namespace vramfit {

/// The command that asks for an estimate, and every key with what became of it.
std::string import_text(const ImportedJob& job, const Terminal& terminal);

/// One object (configs/schemas/import.schema.json).
std::string import_to_json(const ImportedJob& job);

/// "FILE:LINE: KEY: VALUE (why)".
std::string finding_text(const Finding& finding);

}  // namespace vramfit
