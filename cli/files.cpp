#include "cli/files.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "model_specs/error.h"
#include "model_specs/suggest.h"

namespace vramfit {
namespace {

constexpr std::uintmax_t kMostBytes = std::uintmax_t{64} << 20;

}  // namespace

std::string read_file(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) throw InputError(fmt::format("{}: no such file", printable(path)));
  if (!std::filesystem::is_regular_file(status))
    throw InputError(fmt::format("{}: is not a regular file", printable(path)));
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error || size > kMostBytes) {
    throw InputError(
        fmt::format("{}: larger than {} MiB, or its size can't be read", printable(path), kMostBytes >> 20));
  }
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) throw InputError(fmt::format("{}: can't be read: {}", printable(path), std::strerror(errno)));
  return text.str();
}

void write_file(const std::string& path, const std::string& text) {
  if (path == "-") {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return;
  }
  const std::string aside = fmt::format("{}.{}.tmp", path, ::getpid());
  std::ofstream out(aside, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out || std::rename(aside.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    std::remove(aside.c_str());
    throw FaultError(fmt::format("{}: can't be written: {}", printable(path), std::strerror(reason)));
  }
}

}  // namespace vramfit
