// The dynamic section of a mapped library, as the loader sees it before it resolves references.
#pragma once

#include <link.h>

#include <cstddef>
#include <cstdint>

namespace vramfit::phantom {

class ElfObject {
 public:
  explicit ElfObject(const link_map& map);

  /// Null without a symbol of this name that the object defines for others.
  const ElfW(Sym) * definition(const char* name) const;

  /// Calls `visit(symbol, name)` with each reference that must lead somewhere.
  template <class Visit>
  void each_reference(Visit visit) const {
    if (symbols_ == nullptr || strings_ == nullptr) return;
    for (std::size_t index = 1; index < references_; ++index) {
      ElfW(Sym)& symbol = symbols_[index];
      if (symbol.st_shndx == SHN_UNDEF && symbol.st_info >> 4 == STB_GLOBAL) visit(symbol, strings_ + symbol.st_name);
    }
  }

  /// Calls `visit(library, version)` with each version node that the object asks of a library.
  template <class Visit>
  void each_version(Visit visit) const {
    if (versions_ == nullptr || strings_ == nullptr) return;
    auto* need = versions_;
    for (std::size_t left = version_count_; left > 0; --left) {
      auto* version = beside<ElfW(Vernaux)>(need, need->vn_aux);
      for (std::size_t more = need->vn_cnt; more > 0; --more) {
        visit(strings_ + need->vn_file, *version);
        version = beside<ElfW(Vernaux)>(version, version->vna_next);
      }
      need = beside<ElfW(Verneed)>(need, need->vn_next);
    }
  }

 private:
  template <class Entry>
  static Entry* beside(void* entry, std::size_t offset) {
    return reinterpret_cast<Entry*>(static_cast<char*>(entry) + offset);
  }
  const ElfW(Sym) * by_gnu_hash(const char* name) const;
  const ElfW(Sym) * by_hash(const char* name) const;
  bool defines(std::size_t index, const char* name) const;

  ElfW(Sym) * symbols_ = nullptr;
  const char* strings_ = nullptr;
  const std::uint32_t* gnu_hash_ = nullptr;
  const std::uint32_t* hash_ = nullptr;
  ElfW(Verneed) * versions_ = nullptr;
  std::size_t version_count_ = 0, references_ = 0;
};

/// Makes memory of an object writable for as long as this lives. Falls back to doing nothing: see `is_writable`.
class Unlocked {
 public:
  Unlocked(const link_map& map, const void* at, std::size_t bytes);
  ~Unlocked();
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  Unlocked(Unlocked&&) = delete;
  Unlocked& operator=(Unlocked&&) = delete;
  bool is_writable() const { return is_writable_; }

 private:
  std::uintptr_t begin_ = 0;
  std::size_t bytes_ = 0;
  int protection_ = 0;
  bool is_writable_ = false;
};

}  // namespace vramfit::phantom
