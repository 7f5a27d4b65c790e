// Wishes that are each valid and can't hold together, apart from flags that are wrong by themselves: `plan`, which is
// asked for a job that has all of them, says that there is none (exit 4). Other commands end as for their base class.
#pragma once

#include "base/error.h"

namespace vramfit {

/// The message names the flags and what they say.
struct Conflict : InputError {
  using InputError::InputError;
};

/// Between ways of saving memory, or their dtypes, that have no rules together; each alone has.
struct Excluded : NotModelled {
  using NotModelled::NotModelled;
};

/// What the library that trains fails at itself, as rehearsals showed: there is nothing to count, and a rehearsal shows
/// how it ends.
struct LibraryFails : NotModelled {
  using NotModelled::NotModelled;
};

}  // namespace vramfit
