#include "phantom/core/record_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "phantom/core/session.h"
#include "phantom/core/visible_cards.h"

namespace vramfit::phantom {

namespace {

namespace layout = process_record;

constexpr std::size_t kMostDigits = 12;

void* map_file(std::size_t bytes) {
  const std::string path = session().folder + "/process." + std::to_string(getpid()) + ".record";
  // A process that executes another program keeps its id: the file begins anew.
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  void* address = MAP_FAILED;
  if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0) {
    address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  if (file >= 0) close(file);
  if (address != MAP_FAILED) return address;
  std::fprintf(stderr, "vramfit phantom: cannot map %s\n", path.c_str());
  std::_Exit(1);
}

void put_command(std::array<char, layout::kCommandBytes>& command) {
  const int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  const ssize_t count = read(file, command.data(), command.size() - 1);
  close(file);
  if (count > 0) command[static_cast<std::size_t>(count)] = '\0';
}

}  // namespace

RecordFile::RecordFile() {
  const auto cards = static_cast<std::size_t>(session().cards_per_node);
  auto* bytes = static_cast<std::byte*>(map_file(layout::file_bytes(cards)));
  header_ = reinterpret_cast<layout::Header*>(bytes);
  cards_ = reinterpret_cast<layout::Card*>(bytes + sizeof(layout::Header));
  texts_ = reinterpret_cast<layout::Text*>(bytes + sizeof(layout::Header) + cards * sizeof(layout::Card));
  header_->process = getpid();
  header_->rank = -1;
  header_->cards = session().cards_per_node;
  put_command(header_->command);
  look_at_rank();
  __atomic_store_n(&header_->magic, layout::kMagic, __ATOMIC_RELEASE);
}

layout::Card& RecordFile::card(int number) {
  layout::Card& card = cards_[place_of_card(number)];
  if (card.is_used == 0) {
    put(card.number, number);
    put(card.is_used, 1);
  }
  return card;
}

layout::Text* RecordFile::text(layout::TextKind kind, bool steers, std::string_view name, std::size_t most) {
  const std::string kept(name.substr(name.size() - std::min(name.size(), layout::kTextBytes - 1)));
  if (const auto found = by_name_.find({kind, steers, kept}); found != by_name_.end()) return found->second;
  const auto next = static_cast<std::size_t>(header_->texts);
  if (next == layout::kMostTexts || made_[kind] >= most) return nullptr;
  ++made_[kind];
  layout::Text* const made = texts_ + next;
  made->kind = kind;
  made->steers = steers ? 1 : 0;
  std::memcpy(made->name.data(), kept.data(), kept.size());
  put(header_->texts, header_->texts + 1);
  by_name_[{kind, steers, kept}] = made;
  return made;
}

void RecordFile::look_at_rank() {
  if (const auto& played = session().played_rank) put(header_->rank, *played);
  const char* rank = std::getenv("RANK");
  if (rank == nullptr || *rank == '\0') return;
  const std::size_t digits = std::strspn(rank, "0123456789");
  if (rank[digits] == '\0' && digits <= kMostDigits) put(header_->rank, std::atoll(rank));
}

}  // namespace vramfit::phantom
