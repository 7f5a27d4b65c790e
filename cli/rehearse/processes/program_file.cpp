#include "cli/rehearse/processes/program_file.h"

#include <elf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "cli/launch/environment.h"

namespace vramfit {
namespace {

constexpr int kMostInterpreters = 4;  // as in the kernel
constexpr std::size_t kLongestPath = 4096;

bool is_file_to_run(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

std::string found_in_path(const std::string& word) {
  std::string list = environment_value("PATH");
  std::istringstream folders(list.empty() ? "/usr/local/bin:/usr/bin:/bin" : list);
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string path = (folder.empty() ? "." : folder) + "/" + word;
    if (is_file_to_run(path)) return path;
  }
  return "";
}

/// The program that a first line "#!/usr/bin/env -S python3 -u" starts, or "".
std::string interpreter_of(std::ifstream& file) {
  std::array<char, kLongestPath> line{};
  file.seekg(2);
  file.getline(line.data(), line.size());
  std::istringstream words(line.data());
  std::string word;
  words >> word;
  if (std::filesystem::path(word).filename() != "env") return word;
  while (words >> word) {
    if (!word.starts_with("-") && word.find('=') == std::string::npos) return found_in_path(word);
  }
  return "";
}

/// The loader that an ELF file requests; "" if none.
std::string loader_of(std::ifstream& file, const Elf64_Ehdr& header) {
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    file.seekg(static_cast<std::streamoff>(header.e_phoff) + i * static_cast<std::streamoff>(sizeof segment));
    if (!file.read(reinterpret_cast<char*>(&segment), sizeof segment)) return "";
    if (segment.p_type != PT_INTERP || segment.p_filesz == 0 || segment.p_filesz > kLongestPath) continue;
    std::string name(segment.p_filesz, '\0');
    file.seekg(static_cast<std::streamoff>(segment.p_offset));
    if (!file.read(name.data(), static_cast<std::streamsize>(name.size()))) return "";
    return name.substr(0, name.find('\0'));
  }
  return "";
}

std::string why_elf_is_out_of_reach(const std::string& path, std::ifstream& file) {
  Elf64_Ehdr header{};
  file.seekg(0);
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header)) return "";
  if (header.e_ident[EI_CLASS] != ELFCLASS64) return "is a 32-bit program";
  const std::string loader = std::filesystem::path(loader_of(file, header)).filename().string();
  if (loader.empty()) return "is statically linked";
  if (!loader.starts_with("ld-linux")) return fmt::format("uses the loader {}", printable(loader));
  struct stat facts {};
  if (::stat(path.c_str(), &facts) == 0 && (facts.st_mode & (S_ISUID | S_ISGID)) != 0) {
    return "runs as another user (set-user-ID), for which the loader ignores LD_AUDIT";
  }
  return "";
}

}  // namespace

std::string find_program(const std::string& word) {
  if (word.find('/') == std::string::npos) {
    std::string path = found_in_path(word);
    if (path.empty()) throw InputError(fmt::format("CMD \"{}\": no such program in PATH", printable(word)));
    return path;
  }
  std::error_code error;
  if (!std::filesystem::exists(word, error)) throw InputError(fmt::format("CMD \"{}\": no such file", printable(word)));
  if (!is_file_to_run(word)) {
    throw InputError(
        fmt::format("CMD \"{}\": can't be executed; put its interpreter in front (python ...), or set "
                    "its execute permission",
                    printable(word)));
  }
  return word;
}

std::string why_out_of_reach(const std::string& path) {
  std::string current = path;
  for (int i = 0; i < kMostInterpreters && !current.empty(); ++i) {
    if (!is_file_to_run(current)) return "";
    std::ifstream file(current, std::ios::binary);
    char magic[4] = {};  // NOLINT(modernize-avoid-c-arrays)
    file.read(magic, sizeof magic);
    if (std::memcmp(magic, ELFMAG, SELFMAG) == 0) return why_elf_is_out_of_reach(current, file);
    file.clear();
    if (magic[0] != '#' || magic[1] != '!') return "";
    current = interpreter_of(file);
  }
  return "";
}

}  // namespace vramfit
