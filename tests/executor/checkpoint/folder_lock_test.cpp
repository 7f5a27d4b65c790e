#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "base/error.h"
#include "executor/checkpoint/folder_lock.h"
#include "executor/place/own_address.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryDirectory;

std::string text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string refusal(const OpenFolder& folder) {
  try {
    const FolderLock lock(folder, "--save");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("a directory that a run saves in is refused to a second one, with who holds it, until the first has ended") {
  const TemporaryDirectory directory;
  const OpenFolder folder = OpenFolder::at(directory.path().string());
  auto first = std::make_unique<FolderLock>(folder, "--save");
  const std::string why = refusal(folder);
  CAPTURE(why);
  CHECK(why.find("--save " + folder.path() + ": in use by another run") == 0);
  CHECK(why.find("pid " + std::to_string(getpid()) + " on " + node_name() + ", started 20") != std::string::npos);
  first.reset();
  CHECK(refusal(folder).empty());
  CHECK(folder.names().empty());
}

TEST_CASE("the lock that a killed run left behind locks nobody out") {
  const TemporaryDirectory directory;
  const std::string left =
      directory.write(".vramfit-lock", "pid 1 on a machine that was switched off in the middle of something");
  const FolderLock lock(OpenFolder::at(directory.path().string()), "--save");
  CHECK(text(left).find("pid " + std::to_string(getpid()) + " on ") == 0);
  CHECK(text(left).find("switched off") == std::string::npos);
}

TEST_CASE("nothing that was put in the place of the lock is overwritten") {
  const TemporaryDirectory directory, outside;
  const std::string victim = outside.write("precious", "precious");
  const fs::path lock = directory.path() / ".vramfit-lock";
  SUBCASE("a link") { fs::create_symlink(victim, lock); }
  SUBCASE("another name of a file") { fs::create_hard_link(victim, lock); }
  CHECK_THROWS_WITH_AS(FolderLock(OpenFolder::at(directory.path().string()), "--save"),
                       doctest::Contains(".vramfit-lock"), FaultError);
  CHECK(text(victim) == "precious");
}

}  // namespace
}  // namespace vramfit
