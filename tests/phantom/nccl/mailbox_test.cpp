#include "phantom/nccl/mailbox.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>

#include "base/error.h"

namespace vramfit::phantom {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "vramfit-mailbox-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::filesystem::path meeting() const { return path_ / "nccl.test"; }

 private:
  std::filesystem::path path_;
};

/// Runs it as a process of its own; its exit code is what it returns.
pid_t start_rank(const std::function<int()>& run) {
  const pid_t process = fork();
  if (process == 0) {
    int code = 99;
    try {
      code = run();
    } catch (const std::exception&) {
    }
    _exit(code);
  }
  return process;
}

int exit_code(pid_t process) {
  int status = 0;
  waitpid(process, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::span<const std::byte> bytes_of(const int& value) { return std::as_bytes(std::span(&value, 1)); }

int value_of(const Message& message) {
  int value = 0;
  if (message.data.size() == sizeof value) std::memcpy(&value, message.data.data(), sizeof value);
  return value;
}

std::vector<int> others(int rank, int ranks) {
  std::vector<int> all;
  for (int other = 0; other < ranks; ++other) {
    if (other != rank) all.push_back(other);
  }
  return all;
}

std::size_t messages_left(const std::filesystem::path& folder) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    count += entry.path().filename().string().starts_with("member") ? 0 : 1;
  }
  return count;
}

const std::atomic<bool> kNever{false};

}  // namespace

TEST_CASE("what each of four processes posts to all others reaches them, fifty times in order") {
  constexpr int kRanks = 4, kRounds = 50;
  const Folder folder;
  std::vector<pid_t> processes;
  for (int rank = 0; rank < kRanks; ++rank) {
    processes.push_back(start_rank([&] {
      Mailbox mailbox(folder.meeting(), rank, kRanks);
      for (int round = 0; round < kRounds; ++round) {
        const int sent = 1000 * round + rank;
        mailbox.post(Lane::collective, static_cast<std::uint64_t>(round), {}, bytes_of(sent), others(rank, kRanks));
        for (const int other : others(rank, kRanks)) {
          const Message message =
              mailbox.take(Lane::collective, static_cast<std::uint64_t>(round), other, seconds(60), kNever);
          if (value_of(message) != 1000 * round + other) return 1;
        }
      }
      return 0;
    }));
  }
  for (const pid_t process : processes) CHECK(exit_code(process) == 0);
  CHECK(messages_left(folder.meeting()) == 0);
}

TEST_CASE("a message waits for its receiver, however many were sent before it and in whatever lane") {
  const Folder folder;
  Mailbox sender(folder.meeting(), 0, 2);
  const std::vector<int> to{1};
  for (int n = 0; n < 100; ++n) sender.post(Lane::pair, static_cast<std::uint64_t>(n), {}, bytes_of(n), to);
  const int other = 7;
  sender.post(Lane::collective, 0, {.call = 3, .count = 1, .certain = 1}, bytes_of(other), to);
  Mailbox receiver(folder.meeting(), 1, 2);
  CHECK(value_of(receiver.try_take(Lane::pair, 99, 0).value()) == 99);
  const Message message = receiver.try_take(Lane::collective, 0, 0).value();
  CHECK(value_of(message) == 7);
  CHECK(message.header.call == 3);
  CHECK(message.header.certain == 1);
  CHECK_FALSE(receiver.try_take(Lane::collective, 0, 0).has_value());
  CHECK_FALSE(receiver.try_take(Lane::pair, 100, 0).has_value());
}

TEST_CASE("a rank that ended without sending is named at once, not at the time-out") {
  const Folder folder;
  Mailbox waiting(folder.meeting(), 0, 2);
  const pid_t process = start_rank([&] {
    const Mailbox mailbox(folder.meeting(), 1, 2);
    return 0;
  });
  REQUIRE(exit_code(process) == 0);
  const auto before = std::chrono::steady_clock::now();
  const std::string expected = "rank 1 of 2 (process " + std::to_string(process) + ") has ended";
  CHECK_THROWS_WITH_AS(waiting.take(Lane::collective, 0, 1, seconds(3600), kNever), expected.c_str(), FaultError);
  CHECK(std::chrono::steady_clock::now() - before < seconds(60));
}

TEST_CASE("what a rank sent before it ended is still taken") {
  const Folder folder;
  const pid_t process = start_rank([&] {
    Mailbox mailbox(folder.meeting(), 1, 2);
    const int last = 5;
    const std::vector<int> to{0};
    mailbox.post(Lane::collective, 0, {}, bytes_of(last), to);
    return 0;
  });
  REQUIRE(exit_code(process) == 0);
  Mailbox waiting(folder.meeting(), 0, 2);
  CHECK(value_of(waiting.take(Lane::collective, 0, 1, seconds(60), kNever)) == 5);
}

TEST_CASE("a time-out says whether the rank joined") {
  const Folder folder;
  Mailbox waiting(folder.meeting(), 0, 3);
  const Mailbox silent(folder.meeting(), 1, 3);  // this very process, so it is alive
  CHECK_THROWS_WITH_AS(waiting.take(Lane::collective, 0, 1, milliseconds(1000), kNever),
                       "rank 1 of 3 did not make the same call within 1 s", FaultError);
  CHECK_THROWS_WITH_AS(waiting.take(Lane::collective, 0, 2, milliseconds(1000), kNever),
                       "rank 2 of 3 never joined the communicator within 1 s", FaultError);
}

TEST_CASE("an aborted communicator waits for nobody") {
  const Folder folder;
  Mailbox waiting(folder.meeting(), 0, 2);
  const std::atomic<bool> aborted{true};
  CHECK_THROWS_AS(waiting.take(Lane::collective, 0, 1, seconds(60), aborted), FaultError);
}

TEST_CASE("a file that is no message is refused") {
  const Folder folder;
  Mailbox waiting(folder.meeting(), 0, 2);
  std::ofstream(folder.meeting() / "c0.1-0") << "short";
  CHECK_THROWS_AS(waiting.try_take(Lane::collective, 0, 1), FaultError);
  std::ofstream(folder.meeting() / "c1.1-0") << std::string(sizeof(Header) + 4, '\x7f');
  CHECK_THROWS_AS(waiting.try_take(Lane::collective, 1, 1), FaultError);
}

}  // namespace vramfit::phantom
