// Reads what a process on phantom GPUs left in its mapped record (base/process/process_record.h).
#pragma once

#include <string>

#include "cli/rehearse/report/records.h"

namespace vramfit {

/// Without torch's statistics. Throws InputError if the file isn't such a record or its numbers can't be right.
ProcessRecord read_driver_record(const std::string& path);

}  // namespace vramfit
