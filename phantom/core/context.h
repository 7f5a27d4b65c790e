// The current context of each thread, which runtime and driver share: cudaSetDevice makes a card's primary context
// current, cuCtxSetCurrent makes any.
#pragma once

#include <cstdint>

#include "phantom/core/status.h"
#include "phantom/core/visibility.h"

namespace vramfit::phantom {

/// What CUcontext points to.
struct Context {
  int card = 0;
  unsigned flags = 0;
  bool is_primary = false;
  bool active = false;  // a primary context exists all the time; it is active while somebody retains it
  int users = 0;        // retains not yet released
  std::uint64_t id = 0;
};

/// The card's primary context, active or not; null if there is no such card.
PHANTOM_CORE Context* primary_context(int card);
/// Makes it active and opens the card at the first user.
PHANTOM_CORE Status retain_primary(int card, Context** context);
PHANTOM_CORE Status release_primary(int card);
/// A device reset: all its blocks are freed, whoever uses it.
PHANTOM_CORE Status reset_primary(int card);

/// A context besides the primary one, with its own share of the card.
PHANTOM_CORE Status create_context(int card, unsigned flags, Context** context);
PHANTOM_CORE Status destroy_context(Context* context);
PHANTOM_CORE bool is_context(const Context* context);

/// Null when the thread has none.
PHANTOM_CORE Context* current_context();
PHANTOM_CORE Status set_current_context(Context* context);  // null: none
PHANTOM_CORE Status push_context(Context* context);
PHANTOM_CORE Status pop_context(Context** context);

/// As cudaSetDevice: the card's primary context becomes active and current.
PHANTOM_CORE Status use_card(int card);
/// The card that the thread's calls go to: the current context's, else 0.
PHANTOM_CORE int current_card();
/// What every call of the runtime that needs a card begins with: makes a context current if the thread has none.
PHANTOM_CORE Status ensure_context();

}  // namespace vramfit::phantom
