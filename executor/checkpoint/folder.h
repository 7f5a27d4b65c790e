// A directory of sharded checkpoints: step-00000010/ is committed, .saving-step-00000010/ is not.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "executor/checkpoint/files.h"
#include "executor/checkpoint/open_folder.h"

namespace vramfit {

std::string committed_folder(const std::string& directory, std::int64_t step);
/// The folder in which the files of a checkpoint are written until it is committed.
std::string aside_name(std::int64_t step);

/// Writes the manifest beside the ranks' files, which are on the disk already, and makes the checkpoint a committed
/// one: a rename, after everything in the folder is synchronized. When this returns, the checkpoint outlives a power
/// failure.
void commit(FileCalls& files, const OpenFolder& directory, std::int64_t step, std::string_view manifest);

/// Removes committed checkpoints up to `step` but the newest `keep`. Each vanishes by a rename first. Only files that
/// the checkpoint's manifest names are removed; a folder that holds others is renamed to kept-step-..., one without a
/// readable manifest to damaged-step-..., each with a warning. A link in the place of a checkpoint doesn't count and
/// stays.
void remove_older(FileCalls& files, const OpenFolder& directory, std::int64_t step, std::int64_t keep);

/// Removes what interrupted saves and removals left. Throws FaultError when the directory can't be written to, and for
/// a link in the place of such a folder.
void remove_leftovers(FileCalls& files, const OpenFolder& directory);

/// Renames the checkpoints of steps after `step`, which were found to be damaged, to damaged-step-...: nothing is lost,
/// and the steps can be saved again.
void set_damaged_aside(FileCalls& files, const OpenFolder& directory, std::int64_t step);

}  // namespace vramfit
