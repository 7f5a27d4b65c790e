#include "base/files/result_file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryDirectory;

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), {}));
}

std::string error_of(const std::string& path) {
  try {
    write_file(path, "text");
  } catch (const FaultError& error) {
    return error.what();
  }
  return "";
}

mode_t mode_of(const fs::path& path) {
  struct stat facts {};
  return lstat(path.c_str(), &facts) == 0 ? facts.st_mode : 0;
}

TEST_CASE("a regular file is replaced as a whole, keeps its permissions, and nothing lies beside it") {
  const TemporaryDirectory folder;
  const std::string path = folder.write("plan.json", "an older and longer plan");
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  write_file(path, "new");
  CHECK(contents(path) == "new");
  CHECK((mode_of(path) & 0777U) == 0600);
  CHECK(entries(folder.path()) == 1);
}

TEST_CASE("a file that is not committed leaves what was there, and nothing else") {
  const TemporaryDirectory folder;
  const std::string path = folder.write("plan.json", "old");
  {
    ResultFile file(path);
    file.write("half of a pl");
    CHECK(entries(folder.path()) == 2);
  }
  CHECK(contents(path) == "old");
  CHECK(entries(folder.path()) == 1);
}

TEST_CASE("links planted under the names that temporary files once had harm nobody") {
  const TemporaryDirectory folder;
  const std::string victim = folder.write("victim", "precious"), path = (folder.path() / "plan.json").string();
  for (const std::string& name : {path + ".part", fmt::format("{}.{}.tmp", path, getpid()), path + ".partial"}) {
    fs::create_symlink(victim, name);
  }
  write_file(path, "plan");
  CHECK(contents(path) == "plan");
  CHECK(contents(victim) == "precious");
  CHECK(entries(folder.path()) == 5);
}

TEST_CASE("a link is followed and stays a link, also when it leads to nothing yet") {
  const TemporaryDirectory folder;
  const std::string file = folder.write("runs/1.json", "old");
  const fs::path link = folder.path() / "latest.json", dangling = folder.path() / "next.json";
  fs::create_symlink("runs/1.json", link);
  fs::create_symlink("runs/2.json", dangling);
  write_file(link, "new");
  write_file(dangling, "next");
  CHECK(contents(file) == "new");
  CHECK(contents(folder.path() / "runs/2.json") == "next");
  CHECK(fs::is_symlink(link));
  CHECK(fs::is_symlink(dangling));
  CHECK(entries(folder.path() / "runs") == 2);
  CHECK(entries(folder.path()) == 3);
}

TEST_CASE("a FIFO is written to once somebody reads it, and stays a FIFO") {
  const TemporaryDirectory folder;
  const std::string path = (folder.path() / "fifo").string();
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  CHECK_FALSE(names_a_file(path));
  CHECK(why_not_writable(path).empty());
  std::string seen;
  {
    const std::jthread reader([&] { seen = contents(path); });
    write_file(path, "through");
  }
  CHECK(seen == "through");
  CHECK(S_ISFIFO(mode_of(path)));
}

// /dev/full; as root, whose fault could put a file in its place, a node of the test's own. "" where none can be made.
std::string full_device(const TemporaryDirectory& folder) {
  if (geteuid() != 0) return "/dev/full";
  struct stat facts {};
  const std::string path = (folder.path() / "full").string();
  const bool made = stat("/dev/full", &facts) == 0 && mknod(path.c_str(), S_IFCHR | 0666U, facts.st_rdev) == 0;
  return made && access(path.c_str(), W_OK) == 0 ? path : "";
}

TEST_CASE("a device is written to and not replaced; a full one is an error that says so") {
  const TemporaryDirectory folder;
  const std::string full = full_device(folder);
  if (full.empty()) return;
  CHECK_FALSE(names_a_file(full));
  const fs::path link = folder.path() / "link";
  fs::create_symlink(full, link);
  for (const std::string& path : {full, link.string()}) {
    CHECK(error_of(path) == path + ": can't be written: No space left on device");
  }
  CHECK(S_ISCHR(mode_of(full)));
  CHECK(fs::is_symlink(link));
}

TEST_CASE("folders, missing folders and read-only files are refused before anything is written") {
  const TemporaryDirectory folder;
  const std::string inside = folder.path().string();
  CHECK(why_not_writable(inside) == "is a directory");
  CHECK(why_not_writable(inside + "/no/such/file") == "the folder " + inside + "/no/such: No such file or directory");
  CHECK(why_not_writable(inside + "/new").empty());
  CHECK(error_of(inside) == inside + ": can't be written: is a directory");
  CHECK(error_of(inside + "/no/file") ==
        inside + "/no/file: can't be written: the folder " + inside + "/no: No such file or directory");
  CHECK(entries(folder.path()) == 0);
}

TEST_CASE("names of descriptors are told from paths") {
  for (const char* name : {"-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"}) CHECK(is_stdout(name));
  CHECK(descriptor_named("/dev/stderr") == 2);
  CHECK(descriptor_named("/dev/fd/63") == 63);
  for (const char* path :
       {"", "--", "./-", "/dev/fd/", "/dev/fd/1x", "/dev/fd/-1", "/dev/fd/99999999999", "/dev/null"}) {
    CAPTURE(path);
    CHECK(descriptor_named(path) == -1);
  }
}

TEST_CASE("a descriptor is written to where it stands, and stays open") {
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  write_file(fmt::format("/dev/fd/{}", ends[1]), "one ");
  write_file(fmt::format("/dev/fd/{}", ends[1]), "two");
  close(ends[1]);
  std::array<char, 16> text{};
  CHECK(read(ends[0], text.data(), text.size()) == 7);
  CHECK(std::string(text.data()) == "one two");
  close(ends[0]);
  CHECK(why_not_writable("/dev/fd/999") == "Bad file descriptor");
  CHECK_THROWS_AS(write_file("/dev/fd/999", "text"), FaultError);
}

TEST_CASE("what is appended follows what was there") {
  const TemporaryDirectory folder;
  const std::string path = folder.write("metrics.jsonl", "one\n");
  const int file = open_to_append(path);
  CHECK(write(file, "two\n", 4) == 4);
  close(file);
  CHECK(contents(path) == "one\ntwo\n");
}

}  // namespace
}  // namespace vramfit
