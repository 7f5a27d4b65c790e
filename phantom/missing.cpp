#include "phantom/missing.h"

#include <link.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>

#include "phantom/elf_object.h"

namespace vramfit::phantom {
namespace {

/// Of a GPU library: how its functions' names begin, and what it answers when it does not support something. Of
/// `is_word` names, a capital letter follows.
struct Family {
  const char* prefix;
  bool is_word;
  std::int64_t not_supported;
};

constexpr std::array kFamilies{
    Family{"cuda", true, 801},    Family{"__cuda", true, 801},   Family{"cublas", false, 15},
    Family{"cudnn", true, 3000},  Family{"cufft", false, 16},    Family{"curand", true, 999},
    Family{"cusolver", false, 9}, Family{"cusparse", false, 10}, Family{"nccl", true, 5},
    Family{"pnccl", true, 5},     Family{"nvml", true, 3},       Family{"nvshmem", false, 1},
    Family{"cuFile", true, 5007}, Family{"cu", true, 801},
};

const Family* family_of(const char* name) {
  for (const Family& family : kFamilies) {
    const std::size_t length = std::strlen(family.prefix);
    if (std::strncmp(name, family.prefix, length) != 0) continue;
    if (!family.is_word || (name[length] >= 'A' && name[length] <= 'Z')) return &family;
  }
  return nullptr;
}

constexpr std::size_t kMostMissing = 256, kMostOpened = 1024, kLongestName = 120;

/// What takes the place of one missing function. Beyond the last, all share it.
struct Missing {
  char name[kLongestName];  // NOLINT(modernize-avoid-c-arrays): zero from the start, without a constructor
  std::int64_t answer;
};
Missing missing[kMostMissing];  // NOLINT(modernize-avoid-c-arrays): likewise
std::size_t missing_count = 0;

/// Core's, in the program's own namespace; null until it is loaded.
using Report = void (*)(const char* name);
std::atomic<Report> report{nullptr};

template <std::size_t kIndex>
std::int64_t call_missing() {
  if (const Report tell = report.load()) tell(missing[kIndex].name);
  return missing[kIndex].answer;
}

using Function = std::int64_t (*)();
template <std::size_t... kIndices>
constexpr std::array<Function, sizeof...(kIndices)> functions_of(std::index_sequence<kIndices...> /*indices*/) {
  return {&call_missing<kIndices>...};
}
constexpr auto kFunctions = functions_of(std::make_index_sequence<kMostMissing>());

Function function_for(const char* name, const Family& family) {
  for (std::size_t index = 0; index < missing_count; ++index) {
    if (std::strcmp(missing[index].name, name) == 0) return kFunctions[index];
  }
  if (missing_count == kMostMissing) return kFunctions[kMostMissing - 1];
  Missing& entry = missing[missing_count];
  const bool is_last = missing_count + 1 == kMostMissing;
  std::snprintf(entry.name, sizeof entry.name, "%s", is_last ? "more functions than can be told apart" : name);
  entry.answer = family.not_supported;
  return kFunctions[missing_count++];
}

/// Mapped since the last time that a dlopen was complete. The loader calls us under its lock.
link_map* opened[kMostOpened];  // NOLINT(modernize-avoid-c-arrays): zero from the start, without a constructor
std::size_t opened_count = 0;

const link_map* first_of(const link_map* object) {
  while (object->l_prev != nullptr) object = object->l_prev;
  return object;
}

bool is_defined(const link_map* first, const char* name) {
  for (const link_map* object = first; object != nullptr; object = object->l_next) {
    if (ElfObject(*object).definition(name) != nullptr) return true;
  }
  return false;
}

/// A reference that the loader takes for one to the object itself leads where the symbol says.
void lead_to(const link_map& object, ElfW(Sym) & symbol, Function function) {
  const Unlocked unlocked(object, &symbol, sizeof symbol);
  if (!unlocked.is_writable()) return;
  symbol.st_info = static_cast<unsigned char>(STB_LOCAL << 4 | STT_FUNC);
  symbol.st_other = STV_HIDDEN;
  symbol.st_shndx = 1;
  symbol.st_value = reinterpret_cast<ElfW(Addr)>(function) - object.l_addr;
}

void complete(const link_map& object) {
  const link_map* first = first_of(&object);
  ElfObject(object).each_reference([&](ElfW(Sym) & symbol, const char* name) {
    const Family* family = family_of(name);
    if (family != nullptr && !is_defined(first, name)) lead_to(object, symbol, function_for(name, *family));
  });
}

const char* base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

void find_report(const link_map& object) {
  if (std::strcmp(base_name(object.l_name), "libvramfit-phantom.so") != 0) return;
  if (const auto* symbol = ElfObject(object).definition("vramfit_phantom_missing")) {
    report = reinterpret_cast<Report>(object.l_addr + symbol->st_value);
  }
}

}  // namespace

void object_opened(link_map* object) {
  find_report(*object);
  ElfObject(*object).each_version([&](const char* library, ElfW(Vernaux) & version) {
    if ((version.vna_flags & VER_FLG_WEAK) != 0 || !has_stand_in(library)) return;
    const Unlocked unlocked(*object, &version, sizeof version);
    if (unlocked.is_writable()) version.vna_flags |= VER_FLG_WEAK;
  });
  if (opened_count < kMostOpened) opened[opened_count++] = object;
}

void object_closed(const link_map* object) {
  for (std::size_t index = 0; index < opened_count; ++index) {
    if (opened[index] == object) opened[index] = opened[--opened_count];
  }
}

void objects_complete() {
  for (std::size_t index = 0; index < opened_count; ++index) complete(*opened[index]);
  opened_count = 0;
}

}  // namespace vramfit::phantom
