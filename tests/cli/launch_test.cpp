#include "cli/launch/launch.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/temporary_directory.h"

namespace vramfit {

namespace {

/// Ranks that are shell scripts.
int launch_shell(const std::string& script, int ranks) {
  return launch_ranks({.program = "/bin/sh", .arguments = {"-c", script}, .ranks = ranks});
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Whether the process whose id a rank wrote to `file` is still there.
bool is_alive(const std::filesystem::path& file) {
  pid_t process = 0;
  std::ifstream(file) >> process;
  REQUIRE(process > 0);
  return kill(process, 0) == 0;
}

void wait_for(const std::filesystem::path& file) {
  for (int i = 0; i < 500 && !std::filesystem::exists(file); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace

TEST_CASE("ranks that all succeed give exit code 0, and each knows its place") {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.path().string();
  CHECK(launch_shell("echo $RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR > " + path + "/$RANK", 3) == 0);
  std::string line;
  std::getline(std::ifstream(path + "/2") >> std::ws, line);
  CHECK(line == "2 2 3 127.0.0.1");
}

TEST_CASE("a rank that runs out of memory ends the others, and its exit code is the answer") {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.path().string();
  const auto start = std::chrono::steady_clock::now();
  const std::string script = "echo $$ > " + path +
                             "/$RANK.pid; if [ $RANK = 1 ]; then "
                             "echo 'vramfit-train: out of memory: 12 bytes' >&2; exit 6; fi; exec sleep 60";
  CHECK(launch_shell(script, 3) == 6);
  CHECK(seconds_since(start) < 5);
  CHECK_FALSE(is_alive(path + "/0.pid"));
  CHECK_FALSE(is_alive(path + "/2.pid"));
}

TEST_CASE("the rank that was killed is the cause, not the ranks that lost it") {
  const std::string script =
      "if [ $RANK = 2 ]; then sleep 0.2; kill -9 $$; fi; sleep 0.1; "
      "echo 'vramfit-train: gathering failed, most likely because another rank ended' >&2; exit 1";
  CHECK(launch_shell(script, 3) == 128 + SIGKILL);
}

TEST_CASE("a rank that failed by itself is the cause, not the ranks that were told to end with it") {
  const std::string script =
      "if [ $RANK = 1 ]; then echo 'vramfit-train: rank 1 on n: no weights' >&2; exit 5; fi; "
      "echo 'vramfit-train: rank 0 on n: ended with the others: rank 1 on n: no weights' >&2; exit 1";
  CHECK(launch_shell(script, 3) == 5);
}

TEST_CASE("ranks that ignore SIGTERM are killed within five seconds") {
  const auto start = std::chrono::steady_clock::now();
  CHECK(launch_shell("trap '' TERM; if [ $RANK = 0 ]; then exit 5; fi; while :; do sleep 0.1; done", 2) == 5);
  CHECK(seconds_since(start) < 5);
}

TEST_CASE("a signal to the launcher ends every rank and gives 128 + its number") {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.path().string();
  const pid_t child = fork();
  if (child == 0)
    _exit(launch_shell(
        "echo $$ > " + path + "/$RANK.new; mv " + path + "/$RANK.new " + path + "/$RANK.pid; exec sleep 60", 2));
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
        "echo $$ > " + path + "/$RANK.new; mv " + path + "/$RANK.new " + path + "/$RANK.pid; exec sleep 60", 2));
  for (const char* rank : {"/0.pid", "/1.pid"}) wait_for(path + rank);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  for (int i = 0; i < 100 && (is_alive(path + "/0.pid") || is_alive(path + "/1.pid")); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  CHECK_FALSE(is_alive(path + "/0.pid"));
  CHECK_FALSE(is_alive(path + "/1.pid"));
}

TEST_CASE("a program that isn't there is an error, not a hang") {
  CHECK(launch_ranks({.program = "/nonexistent/vramfit-train", .arguments = {}, .ranks = 2}) == 1);
}

}  // namespace vramfit
