#include "cli/launch/launch.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "tests/support/temporary_directory.h"

namespace vramfit {

namespace {

/// Ranks that are shell scripts.
int launch_shell(const std::string& script, int ranks) {
  return launch_ranks({.program = "/bin/sh", .arguments = {"-c", script}, .ranks = ranks});
}

/// Whether the process whose id a rank wrote to `file` is still there.
bool is_alive(const std::filesystem::path& file) {
  pid_t process = 0;
  std::ifstream(file) >> process;
  REQUIRE(process > 0);
  return kill(process, 0) == 0;
}

/// For as long as a busy machine may need.
void wait_until(const std::function<bool()>& is_so) {
  for (int i = 0; i < 6000 && !is_so(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

void wait_for(const std::filesystem::path& file) {
  wait_until([&] { return std::filesystem::exists(file); });
}

}  // namespace

TEST_CASE("ranks that all succeed give exit code 0, and each knows its place") {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.path().string();
  CHECK(launch_shell("echo $RANK $LOCAL_RANK $WORLD_SIZE > " + path + "/$RANK", 3) == 0);
  std::string line;
  std::getline(std::ifstream(path + "/2") >> std::ws, line);
  CHECK(line == "2 2 3");
}

TEST_CASE("threads of ranks wait without spinning where there are more of them than cores") {
  const testing::TemporaryDirectory directory;
  const std::string said = (directory.path() / "said").string();
  const auto policy = [&](int threads) {
    const std::string script = "echo threads $OMP_NUM_THREADS, policy ${OMP_WAIT_POLICY:-default} > " + said;
    REQUIRE(launch_ranks({.program = "/bin/sh", .arguments = {"-c", script}, .threads = threads}) == 0);
    std::string line;
    std::getline(std::ifstream(said), line);
    return line;
  };
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  REQUIRE(unsetenv("OMP_WAIT_POLICY") == 0);  // NOLINT(concurrency-mt-unsafe): no other thread
  CHECK(policy(cores) == "threads " + std::to_string(cores) + ", policy default");
  CHECK(policy(cores + 1) == "threads " + std::to_string(cores + 1) + ", policy passive");
}

TEST_CASE("ranks meet in a file where no other user can come, which is gone when they have ended") {
  const testing::TemporaryDirectory directory;
  const std::string said = (directory.path() / "said").string();
  CHECK(launch_shell("ls -ld \"$(dirname $VRAMFIT_STORE_FILE)\" > " + said, 1) == 0);
  std::string mode, folder;
  std::getline(std::ifstream(said) >> std::ws, mode);
  folder = mode.substr(mode.find('/'));
  CHECK(mode.starts_with("drwx------"));
  CHECK_FALSE(std::filesystem::exists(folder));
}

TEST_CASE("a rank that runs out of memory ends the others, and its exit code is the answer") {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.path().string();
  const std::string script = "cd " + path +
                             "; echo $$ > $RANK.pid; if [ $RANK = 1 ]; then "
                             "while [ ! -s 0.pid ] || [ ! -s 2.pid ]; do sleep 0.02; done; "
                             "echo 'vramfit-train: out of memory: 12 bytes' >&2; exit 6; fi; exec sleep 600";
  CHECK(launch_shell(script, 3) == 6);
  CHECK_FALSE(is_alive(path + "/0.pid"));
  CHECK_FALSE(is_alive(path + "/2.pid"));
}

TEST_CASE("a warning of rank 0 is shown, and is not taken for what ended it") {
  const testing::TemporaryDirectory directory;
  const std::string shown = (directory.path() / "shown").string();
  const pid_t child = fork();
  if (child == 0) {
    if (std::freopen(shown.c_str(), "w", stderr) == nullptr) _exit(99);
    const int code = launch_shell("echo 'vramfit-train: warning: a checkpoint was skipped' >&2; exit 5", 1);
    std::fclose(stderr);
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WEXITSTATUS(status) == 5);
  std::ifstream file(shown);
  std::string first, second;
  std::getline(file, first);
  std::getline(file, second);
  CHECK(first == "vramfit-train: warning: a checkpoint was skipped");
  CHECK(second == "vramfit: rank 0: exit code 5");
}

TEST_CASE("the rank that was killed is the cause, not the ranks that lost it") {
  // It is killed right after the first of the others has ended.
  const testing::TemporaryDirectory directory;
  const std::string script =
      "cd " + directory.path().string() +
      "; if [ $RANK = 2 ]; then until [ -e gone ]; do :; done; kill -9 $$; fi; "
      "echo 'vramfit-train: gathering failed, most likely because another rank ended' >&2; : > gone; exit 1";
  CHECK(launch_shell(script, 3) == 128 + SIGKILL);
}

TEST_CASE("a rank that failed by itself is the cause, not the ranks that were told to end with it") {
  const testing::TemporaryDirectory directory;
  const std::string script =
      "cd " + directory.path().string() +
      "; if [ $RANK = 1 ]; then echo 'vramfit-train: rank 1 on n: no weights' >&2; : > gone; exit 5; fi; "
      "until [ -e gone ]; do sleep 0.02; done; echo 'vramfit-train: rank 0 on n: stopped because another rank failed: "
      "rank 1 on n: "
      "no weights' >&2; exit 1";
  CHECK(launch_shell(script, 3) == 5);
}

TEST_CASE("ranks that ignore SIGTERM are killed within five seconds") {
  // A busy machine may hold up any one of the tries.
  using Seconds = std::chrono::duration<double>;
  Seconds least{60};
  for (int i = 0; i < 3 && least >= Seconds{5}; ++i) {
    const auto start = std::chrono::steady_clock::now();
    CHECK(launch_shell("trap '' TERM; if [ $RANK = 0 ]; then exit 5; fi; while :; do sleep 0.1; done", 2) == 5);
    least = std::min(least, Seconds(std::chrono::steady_clock::now() - start));
  }
  CHECK(least < Seconds{5});
}

TEST_CASE("a signal to the launcher ends every rank and gives 128 + its number") {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.path().string();
  const pid_t child = fork();
  if (child == 0)
    _exit(launch_shell(
        "echo $$ > " + path + "/$RANK.new; mv " + path + "/$RANK.new " + path + "/$RANK.pid; exec sleep 600", 2));
  for (const char* rank : {"/0.pid", "/1.pid"}) wait_for(path + rank);
  kill(child, SIGTERM);
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WEXITSTATUS(status) == 128 + SIGTERM);
  CHECK_FALSE(is_alive(path + "/0.pid"));
  CHECK_FALSE(is_alive(path + "/1.pid"));
}

TEST_CASE("ranks do not outlive a launcher that is killed") {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.path().string();
  const pid_t child = fork();
  if (child == 0)
    _exit(launch_shell(
        "echo $$ > " + path + "/$RANK.new; mv " + path + "/$RANK.new " + path + "/$RANK.pid; exec sleep 600", 2));
  for (const char* rank : {"/0.pid", "/1.pid"}) wait_for(path + rank);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  wait_until([&] { return !is_alive(path + "/0.pid") && !is_alive(path + "/1.pid"); });
  CHECK_FALSE(is_alive(path + "/0.pid"));
  CHECK_FALSE(is_alive(path + "/1.pid"));
}

TEST_CASE("a program that isn't there is an error, not a hang") {
  CHECK(launch_ranks({.program = "/nonexistent/vramfit-train", .arguments = {}, .ranks = 2}) == 1);
}

}  // namespace vramfit
