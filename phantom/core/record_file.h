// The mapped file behind record.h: one of each process.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>

#include "base/process/process_record.h"

namespace vramfit::phantom {

/// Stores in place, and after all that was stored before: whoever reads the file later sees them in this order,
/// wherever the process was killed.
inline void put(std::int64_t& field, std::int64_t value) { __atomic_store_n(&field, value, __ATOMIC_RELEASE); }

class RecordFile {
 public:
  /// Makes $session/process.PID.record. If that can't be done, the process ends with one line on stderr, as its figures
  /// would be lost.
  RecordFile();

  process_record::Header& header() { return *header_; }
  /// By the process's number of the card.
  process_record::Card& card(int number);
  /// The text of that kind and name, made with a count of 0 if there are fewer than `most` of the kind; else null.
  process_record::Text* text(process_record::TextKind kind, bool steers, std::string_view name, std::size_t most);
  /// Programs set RANK before or after they first use a card.
  void look_at_rank();

 private:
  process_record::Header* header_ = nullptr;
  process_record::Card* cards_ = nullptr;
  process_record::Text* texts_ = nullptr;
  std::map<std::tuple<process_record::TextKind, bool, std::string>, process_record::Text*> by_name_;
  std::map<process_record::TextKind, std::size_t> made_;
};

}  // namespace vramfit::phantom
