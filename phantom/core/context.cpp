#include "phantom/core/context.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "phantom/core/memory.h"
#include "phantom/core/session.h"
#include "phantom/core/visible_cards.h"

namespace vramfit::phantom {

namespace {

struct State {
  std::mutex mutex;
  std::map<int, std::unique_ptr<Context>> primaries;  // by card
  std::map<const Context*, std::unique_ptr<Context>> others;
  std::uint64_t next_id = 1;
};

// Never destroyed: programs use their context in their own destructors.
State& state() {
  static auto* const kState = new State;  // NOLINT(cppcoreguidelines-owning-memory)
  return *kState;
}

// The last is current, as cuCtxPushCurrent has it; an entry can be null. Never destroyed: static objects of libraries
// call in while the process ends, when the main thread's own objects are gone.
std::vector<Context*>& stack() {
  thread_local auto* contexts = new std::vector<Context*>;
  return *contexts;
}

bool is_card(int card) { return card >= 0 && card < card_count(); }

Context* primary(State& s, int card) {
  auto& slot = s.primaries[card];
  if (!slot) slot = std::make_unique<Context>(Context{.card = card, .is_primary = true, .id = s.next_id++});
  return slot.get();
}

bool known(State& s, const Context* context) {
  if (s.others.contains(context)) return true;
  return std::ranges::any_of(s.primaries, [&](const auto& entry) { return entry.second.get() == context; });
}

}  // namespace

Context* primary_context(int card) {
  if (!is_card(card)) return nullptr;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return primary(s, card);
}

Status retain_primary(int card, Context** context) {
  if (!is_card(card)) return Status::invalid_device;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Context* const found = primary(s, card);
  if (!found->active) {
    const Status opened = open_card(card);
    if (opened != Status::success) return opened;
    found->active = true;
  }
  ++found->users;
  *context = found;
  return Status::success;
}

// The runtime keeps its own retain for as long as the process lives, so a library that retains and releases
// does not pull the card away from under it.
Status release_primary(int card) {
  if (!is_card(card)) return Status::invalid_device;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Context* const found = primary(s, card);
  if (found->users == 0) return Status::invalid_context;
  if (--found->users == 0) {
    found->active = false;
    close_card(card);
  }
  return Status::success;
}

Status reset_primary(int card) {
  if (!is_card(card)) return Status::invalid_device;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Context* const found = primary(s, card);
  if (found->active) close_card(card);
  found->active = false;
  found->users = 0;
  return Status::success;
}

Status create_context(int card, unsigned flags, Context** context) {
  if (!is_card(card)) return Status::invalid_device;
  const Status charged = charge_card(card, session().card.context_bytes);
  if (charged != Status::success) return charged;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  auto made = std::make_unique<Context>(Context{.card = card, .flags = flags, .active = true, .id = s.next_id++});
  Context* const raw = made.get();
  s.others.emplace(raw, std::move(made));
  stack().push_back(raw);
  *context = raw;
  return Status::success;
}

Status destroy_context(Context* context) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto found = s.others.find(context);
  if (found == s.others.end()) return Status::invalid_context;
  if (!stack().empty() && stack().back() == context) stack().pop_back();
  const int card = context->card;
  s.others.erase(found);
  return charge_card(card, -session().card.context_bytes);
}

bool is_context(const Context* context) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return known(s, context);
}

Context* current_context() { return stack().empty() ? nullptr : stack().back(); }

Status set_current_context(Context* context) {
  if (context != nullptr && !is_context(context)) return Status::invalid_context;
  if (stack().empty()) {
    stack().push_back(context);
  } else {
    stack().back() = context;
  }
  return Status::success;
}

Status push_context(Context* context) {
  if (!is_context(context)) return Status::invalid_context;
  stack().push_back(context);
  return Status::success;
}

Status pop_context(Context** context) {
  if (stack().empty() || stack().back() == nullptr) return Status::invalid_context;
  if (context != nullptr) *context = stack().back();
  stack().pop_back();
  return Status::success;
}

Status use_card(int card) {
  Context* const context = primary_context(card);
  if (context == nullptr) return Status::invalid_device;
  if (!context->active) {
    Context* retained = nullptr;
    const Status status = retain_primary(card, &retained);
    if (status != Status::success) return status;
  }
  return set_current_context(context);
}

int current_card() {
  const Context* const context = current_context();
  return context == nullptr ? 0 : context->card;
}

Status ensure_context() {
  const Context* const context = current_context();
  if (context != nullptr && context->active) return Status::success;
  return use_card(current_card());
}

}  // namespace vramfit::phantom
