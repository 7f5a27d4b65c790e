#include "phantom/elf_object.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace vramfit::phantom {
namespace {

/// The loader has added where the object lies to some addresses of the section, and not to others.
template <class Entry>
Entry* address(const link_map& map, ElfW(Addr) value) {
  return reinterpret_cast<Entry*>(value < map.l_addr ? value + map.l_addr : value);
}

std::uint32_t gnu_hash_of(const char* name) {
  std::uint32_t hash = 5381;
  for (; *name != '\0'; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
  return hash;
}

std::uint32_t hash_of(const char* name) {
  std::uint32_t hash = 0;
  for (; *name != '\0'; ++name) {
    hash = (hash << 4) + static_cast<unsigned char>(*name);
    const std::uint32_t high = hash & 0xf0000000U;
    hash ^= high >> 24;
    hash &= ~high;
  }
  return hash;
}

/// As the program header of the segment that holds it says; -1: in none.
int protection_at(const link_map& map, std::uintptr_t at) {
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(map.l_addr);
  if (map.l_addr == 0 || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return -1;
  const auto* segment = reinterpret_cast<const ElfW(Phdr)*>(map.l_addr + header->e_phoff);
  for (int left = header->e_phnum; left > 0; --left, ++segment) {
    const std::uintptr_t begin = map.l_addr + segment->p_vaddr;
    if (segment->p_type != PT_LOAD || at < begin || at >= begin + segment->p_memsz) continue;
    return ((segment->p_flags & PF_R) != 0 ? PROT_READ : 0) | ((segment->p_flags & PF_W) != 0 ? PROT_WRITE : 0) |
           ((segment->p_flags & PF_X) != 0 ? PROT_EXEC : 0);
  }
  return -1;
}

}  // namespace

ElfObject::ElfObject(const link_map& map) {
  if (map.l_ld == nullptr) return;
  for (const ElfW(Dyn)* entry = map.l_ld; entry->d_tag != DT_NULL; ++entry) {
    const ElfW(Addr) value = entry->d_un.d_ptr;
    switch (entry->d_tag) {
      case DT_SYMTAB:
        symbols_ = address<ElfW(Sym)>(map, value);
        break;
      case DT_STRTAB:
        strings_ = address<const char>(map, value);
        break;
      case DT_GNU_HASH:
        gnu_hash_ = address<const std::uint32_t>(map, value);
        break;
      case DT_HASH:
        hash_ = address<const std::uint32_t>(map, value);
        break;
      case DT_VERNEED:
        versions_ = address<ElfW(Verneed)>(map, value);
        break;
      case DT_VERNEEDNUM:
        version_count_ = entry->d_un.d_val;
        break;
      default:
        break;
    }
  }
  // The table of GNU's kind leaves out references, which come first; the other kind lists all symbols.
  if (gnu_hash_ != nullptr) {
    references_ = gnu_hash_[1];
  } else if (hash_ != nullptr) {
    references_ = hash_[1];
  }
}

bool ElfObject::defines(std::size_t index, const char* name) const {
  const ElfW(Sym)& symbol = symbols_[index];
  return symbol.st_shndx != SHN_UNDEF && symbol.st_info >> 4 != STB_LOCAL &&
         std::strcmp(strings_ + symbol.st_name, name) == 0;
}

const ElfW(Sym) * ElfObject::by_gnu_hash(const char* name) const {
  const std::uint32_t buckets = gnu_hash_[0], first = gnu_hash_[1], words = gnu_hash_[2];
  if (buckets == 0) return nullptr;
  const auto* filter = reinterpret_cast<const ElfW(Addr)*>(gnu_hash_ + 4);
  const auto* bucket = reinterpret_cast<const std::uint32_t*>(filter + words);
  const std::uint32_t hash = gnu_hash_of(name);
  for (std::uint32_t index = bucket[hash % buckets]; index >= first; ++index) {
    const std::uint32_t found = bucket[buckets + index - first];
    if ((found | 1U) == (hash | 1U) && defines(index, name)) return symbols_ + index;
    if ((found & 1U) != 0) break;  // the last of its chain
  }
  return nullptr;
}

const ElfW(Sym) * ElfObject::by_hash(const char* name) const {
  const std::uint32_t buckets = hash_[0];
  const std::uint32_t *bucket = hash_ + 2, *chain = bucket + buckets;
  if (buckets == 0) return nullptr;
  for (std::uint32_t index = bucket[hash_of(name) % buckets]; index != 0; index = chain[index]) {
    if (defines(index, name)) return symbols_ + index;
  }
  return nullptr;
}

const ElfW(Sym) * ElfObject::definition(const char* name) const {
  if (symbols_ == nullptr || strings_ == nullptr) return nullptr;
  if (gnu_hash_ != nullptr) return by_gnu_hash(name);
  return hash_ != nullptr ? by_hash(name) : nullptr;
}

Unlocked::Unlocked(const link_map& map, const void* at, std::size_t bytes) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(at);
  protection_ = protection_at(map, first);
  if (protection_ < 0) return;
  begin_ = first / page * page;
  bytes_ = first + bytes - begin_;
  is_writable_ = mprotect(reinterpret_cast<void*>(begin_), bytes_, protection_ | PROT_READ | PROT_WRITE) == 0;
}

Unlocked::~Unlocked() {
  if (is_writable_) mprotect(reinterpret_cast<void*>(begin_), bytes_, protection_);
}

}  // namespace vramfit::phantom
