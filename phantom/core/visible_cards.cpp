#include "phantom/core/visible_cards.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "phantom/core/session.h"

namespace vramfit::phantom {

namespace {

// As the driver reads it: the list ends before the first entry that names no card, or one twice.
std::vector<int> read_list(std::string_view text, int cards) {
  std::vector<int> seen;
  while (!text.empty()) {
    std::string item(text.substr(0, text.find(',')));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    std::erase(item, ' ');
    if (item.rfind("GPU-", 0) == 0)
      item = item.substr(item.find_last_of('-') + 1);  // our UUIDs end in the card's place
    if (item.empty() || item.size() > 12 || item.find_first_not_of("0123456789") != std::string::npos) break;
    const long long place = std::stoll(item);
    if (place >= cards || std::ranges::find(seen, place) != seen.end()) break;
    seen.push_back(static_cast<int>(place));
  }
  return seen;
}

const std::vector<int>* read_places() {
  const int cards = session().cards_per_node;
  auto* seen = new std::vector<int>;  // NOLINT(cppcoreguidelines-owning-memory)
  if (const char* list = std::getenv("CUDA_VISIBLE_DEVICES")) {
    *seen = read_list(list, cards);
  } else {
    for (int card = 0; card < cards; ++card) seen->push_back(card);
  }
  return seen;
}

std::atomic<const std::vector<int>*> known_places{nullptr};

// Never destroyed, as the session. Two threads that come first find the same.
const std::vector<int>& places() {
  const std::vector<int>* found = known_places.load(std::memory_order_acquire);
  if (found == nullptr) {
    found = read_places();
    known_places.store(found, std::memory_order_release);
  }
  return *found;
}

}  // namespace

void forget_visible_cards() { known_places.store(nullptr); }

int card_count() { return static_cast<int>(places().size()); }

int place_of_card(int card) { return places()[static_cast<std::size_t>(card)]; }

}  // namespace vramfit::phantom
