#include "cli/rehearse/report/artifacts.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/file.h"
#include "base/files/result_file.h"
#include "base/text/suggest.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;

constexpr FileRole kArtifact{"rehearsal", ExitCode::usage};

std::string with_mark(const fs::path& target, const std::string& mark) {
  return (target.parent_path() / (target.stem().string() + mark + target.extension().string())).string();
}

/// The process's rank, when no other process says the same of itself.
std::string mark_of(const ProcessRecord& process, const std::vector<ProcessRecord>& processes) {
  const bool own = process.rank && std::ranges::count(processes, process.rank, &ProcessRecord::rank) == 1;
  return own ? fmt::format(".rank{}", *process.rank) : fmt::format(".{}", process.process);
}

void copy_out(const std::string& from, const std::string& to) {
  constexpr std::int64_t kPart = 1 << 20;
  const File file(from, kArtifact);
  ResultFile out(to);
  std::string part;
  for (std::int64_t done = 0; done < file.bytes(); done += std::ssize(part)) {
    part.resize(static_cast<std::size_t>(std::min(kPart, file.bytes() - done)));
    file.read(done, part);
    out.write(part);
  }
  out.commit();
}

}  // namespace

void check_can_write(const std::string& flag, const std::string& path) {
  const std::string why = why_not_writable(path);
  if (!why.empty()) throw InputError(fmt::format("{} {}: can't be written: {}", flag, printable(path), why));
}

std::vector<std::string> deliver(const std::string& folder, const std::string& kind,
                                 const std::vector<ProcessRecord>& processes, const std::string& target) {
  std::vector<std::pair<fs::path, std::string>> files;  // and what marks it
  for (const ProcessRecord& process : processes) {
    const std::string start = fmt::format("{}.{}.", kind, process.process);
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(start)) files.emplace_back(entry.path(), mark_of(process, processes));
    }
  }
  const bool beside = names_a_file(target);
  if (!beside && !files.empty()) files.resize(1);  // a pipe or a device: the first rank's
  std::vector<std::string> names;
  for (const auto& [file, mark] : files) {
    names.push_back(files.size() == 1 ? target : with_mark(target, mark));
    copy_out(file.string(), names.back());
  }
  return names;
}

}  // namespace vramfit
