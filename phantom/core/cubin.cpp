#include "phantom/core/cubin.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "phantom/core/architecture.h"

namespace vramfit::phantom {

namespace {

using Bytes = std::span<const std::byte>;

constexpr std::uint16_t kMachineCuda = 190;  // EM_CUDA

// Attributes of the .nv.info sections, by the names that cuobjdump prints.
constexpr std::uint8_t kMaxThreads = 0x05;
constexpr std::uint8_t kRequiredThreads = 0x10;
constexpr std::uint8_t kFrameSize = 0x11;
constexpr std::uint8_t kParameter = 0x17;
constexpr std::uint8_t kMinStackSize = 0x12;
constexpr std::uint8_t kParameterBytes = 0x19;
constexpr std::uint8_t kRegisters = 0x2f;
constexpr std::uint8_t kParameterOfLargeList = 0x45;
constexpr std::uint8_t kFormatSized = 4;  // the value is a length, the bytes follow

template <typename T>
std::optional<T> read_at(Bytes bytes, std::uint64_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

Bytes part(Bytes bytes, std::uint64_t offset, std::uint64_t size) {
  if (offset > bytes.size() || bytes.size() - offset < size) return {};
  return bytes.subspan(offset, size);
}

std::string_view text_at(Bytes table, std::uint64_t offset) {
  if (offset >= table.size()) return {};
  const auto* const start = reinterpret_cast<const char*>(table.data() + offset);
  return {start, strnlen(start, table.size() - offset)};
}

struct Section {
  std::string_view name;
  Elf64_Shdr header{};
  Bytes content;  // empty for NOBITS
};

struct Symbol {
  std::string_view name;
  Elf64_Sym entry{};
};

struct Elf {
  std::vector<Section> sections;
  std::vector<Symbol> symbols;
};

bool read_sections(Bytes image, const Elf64_Ehdr& header, Elf& elf) {
  for (std::uint64_t i = 0; i < header.e_shnum; ++i) {
    const auto section = read_at<Elf64_Shdr>(image, header.e_shoff + i * sizeof(Elf64_Shdr));
    if (!section) return false;
    Bytes content;
    if (section->sh_type != SHT_NOBITS) {
      content = part(image, section->sh_offset, section->sh_size);
      if (content.size() != section->sh_size) return false;
    }
    elf.sections.push_back({.name = {}, .header = *section, .content = content});
  }
  return true;
}

void read_symbols(Elf& elf) {
  for (const Section& section : elf.sections) {
    if (section.header.sh_type != SHT_SYMTAB || section.header.sh_link >= elf.sections.size()) continue;
    const Bytes strings = elf.sections[section.header.sh_link].content;
    for (std::size_t at = 0; at + sizeof(Elf64_Sym) <= section.content.size(); at += sizeof(Elf64_Sym)) {
      const auto symbol = *read_at<Elf64_Sym>(section.content, at);
      elf.symbols.push_back({.name = text_at(strings, symbol.st_name), .entry = symbol});
    }
    return;
  }
}

std::optional<Elf> read_elf(Bytes image) {
  const auto header = read_at<Elf64_Ehdr>(image, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64 ||
      header->e_machine != kMachineCuda || header->e_shentsize != sizeof(Elf64_Shdr)) {
    return std::nullopt;
  }
  Elf elf;
  if (!read_sections(image, *header, elf)) return std::nullopt;
  if (header->e_shstrndx >= elf.sections.size()) return std::nullopt;
  const Bytes names = elf.sections[header->e_shstrndx].content;
  for (Section& section : elf.sections) section.name = text_at(names, section.header.sh_name);
  read_symbols(elf);
  return elf;
}

/// Calls visit(attribute, bytes) for each sized attribute, and visit(attribute, the value's two bytes) for the others.
template <typename Visit>
bool each_attribute(Bytes info, Visit visit) {
  std::size_t at = 0;
  while (at + 4 <= info.size()) {
    const auto format = std::to_integer<std::uint8_t>(info[at]);
    const auto attribute = std::to_integer<std::uint8_t>(info[at + 1]);
    const Bytes value = info.subspan(at + 2, 2);
    at += 4;
    if (format != kFormatSized) {
      visit(attribute, value);
      continue;
    }
    const std::size_t length = *read_at<std::uint16_t>(value, 0);
    if (info.size() - at < length) return false;
    visit(attribute, info.subspan(at, length));
    at += length;
  }
  return true;
}

int threads_of(Bytes value) {  // x, y, z
  int product = 1;
  for (std::size_t at = 0; at < 12; at += 4) {
    product *= static_cast<int>(std::clamp<std::uint32_t>(read_at<std::uint32_t>(value, at).value_or(1), 1, 1024));
  }
  return std::min(product, 1024);
}

// A parameter: index, ordinal (16 bits), offset (16 bits), then a word whose upper 14 bits are its size.
void read_kernel_info(Bytes info, KernelFacts& facts) {
  struct Listed {
    std::uint16_t ordinal;
    KernelFacts::Parameter parameter;
  };
  std::vector<Listed> listed;
  bool readable = true, has_parameters = false;
  readable = each_attribute(
                 info,
                 [&](std::uint8_t attribute, Bytes value) {
                   if (attribute == kParameter && value.size() >= 12) {
                     const auto size = *read_at<std::uint32_t>(value, 8) >> 18U;
                     listed.push_back({*read_at<std::uint16_t>(value, 4), {*read_at<std::uint16_t>(value, 6), size}});
                   } else if (attribute == kParameterOfLargeList) {
                     readable = false;
                   } else if (attribute == kParameterBytes) {
                     has_parameters = read_at<std::uint16_t>(value, 0).value_or(0) > 0;
                   } else if (attribute == kMaxThreads || attribute == kRequiredThreads) {
                     facts.max_threads_per_block = threads_of(value);
                   }
                 }) &&
             readable;
  std::sort(listed.begin(), listed.end(), [](const auto& a, const auto& b) { return a.ordinal < b.ordinal; });
  for (std::size_t i = 0; i < listed.size(); ++i) {
    if (listed[i].ordinal != i) readable = false;
    facts.parameters.push_back(listed[i].parameter);
  }
  facts.parameters_known = readable && (has_parameters == !listed.empty());
}

bool take_prefix(std::string_view& name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return false;
  name.remove_prefix(prefix.size());
  return true;
}

// .nv.info holds what concerns several kernels: (symbol, value) pairs.
void read_shared_info(const Elf& elf, Bytes info, Cubin& cubin) {
  each_attribute(info, [&](std::uint8_t attribute, Bytes value) {
    if (attribute != kRegisters && attribute != kFrameSize && attribute != kMinStackSize) return;
    const auto symbol = read_at<std::uint32_t>(value, 0);
    const auto number = read_at<std::uint32_t>(value, 4);
    if (!symbol || !number || *symbol >= elf.symbols.size()) return;
    const auto kernel = cubin.kernels.find(elf.symbols[*symbol].name);
    if (kernel == cubin.kernels.end()) return;
    if (attribute == kRegisters) {
      kernel->second.registers = static_cast<int>(*number);
    } else {
      kernel->second.local_bytes = std::max<std::int64_t>(kernel->second.local_bytes, *number);
    }
  });
}

void read_variables(const Elf& elf, Cubin& cubin) {
  for (const Symbol& symbol : elf.symbols) {
    if (ELF64_ST_TYPE(symbol.entry.st_info) != STT_OBJECT || symbol.entry.st_shndx >= elf.sections.size()) continue;
    const Section& section = elf.sections[symbol.entry.st_shndx];
    if (!section.name.starts_with(".nv.global") && section.name != ".nv.constant3") continue;
    const Bytes initial = part(section.content, symbol.entry.st_value, symbol.entry.st_size);
    cubin.variables[std::string(symbol.name)] = {.bytes = static_cast<std::int64_t>(symbol.entry.st_size),
                                                 .is_constant = section.name == ".nv.constant3",
                                                 .initial = {initial.begin(), initial.end()}};
  }
}

// What several kernels' notes and the sizes of their sections say.
void read_sizes(const Elf& elf, Cubin& cubin) {
  const bool has_reserved = std::any_of(elf.sections.begin(), elf.sections.end(),
                                        [](const Section& s) { return s.name == ".nv.shared.reserved.0"; });
  for (const Section& section : elf.sections) {
    std::string_view name = section.name;
    const auto bytes = static_cast<std::int64_t>(section.header.sh_size);
    if (name == ".nv.info") {
      read_shared_info(elf, section.content, cubin);
    } else if (take_prefix(name, ".nv.shared.")) {
      const auto kernel = cubin.kernels.find(name);
      const std::int64_t reserved = has_reserved && bytes >= kReservedSharedPerBlock ? kReservedSharedPerBlock : 0;
      if (kernel != cubin.kernels.end()) kernel->second.static_shared_bytes = bytes - reserved;
    } else if (name.starts_with(".nv.constant2.")) {  // the user's own constants; bank 0 holds the parameters
      const auto kernel = cubin.kernels.find(name.substr(std::string_view(".nv.constant2.").size()));
      if (kernel != cubin.kernels.end()) kernel->second.constant_bytes = bytes;
    }
  }
}

// The architecture moved within the flags with version 8 of the format.
int capability_of(const Elf64_Ehdr& header) {
  constexpr unsigned kMovedIn = 8;
  const unsigned shift = header.e_ident[EI_ABIVERSION] >= kMovedIn ? 8 : 0;
  return static_cast<int>(header.e_flags >> shift & 0xFFU);
}

}  // namespace

std::optional<Cubin> read_cubin(Bytes image) {
  const auto elf = read_elf(image);
  if (!elf) return std::nullopt;
  Cubin cubin;
  cubin.capability = capability_of(*read_at<Elf64_Ehdr>(image, 0));
  for (const Section& section : elf->sections) {
    std::string_view name = section.name;
    if (take_prefix(name, ".nv.info.")) read_kernel_info(section.content, cubin.kernels[std::string(name)]);
  }
  read_sizes(*elf, cubin);
  for (auto& [name, facts] : cubin.kernels) facts.capability = cubin.capability;
  read_variables(*elf, cubin);
  return cubin;
}

std::size_t elf_bytes(const void* image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64) return 0;
  std::size_t end = std::max(header.e_shoff + std::size_t{header.e_shnum} * header.e_shentsize,
                             header.e_phoff + std::size_t{header.e_phnum} * header.e_phentsize);
  for (std::size_t i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    std::memcpy(&section, static_cast<const std::byte*>(image) + header.e_shoff + i * header.e_shentsize,
                sizeof section);
    if (section.sh_type != SHT_NOBITS) end = std::max(end, section.sh_offset + section.sh_size);
  }
  return end;
}

}  // namespace vramfit::phantom
