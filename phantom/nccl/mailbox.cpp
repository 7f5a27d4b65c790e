#include "phantom/nccl/mailbox.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/error.h"

namespace vramfit::phantom {

namespace {

using Clock = std::chrono::steady_clock;

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  File(File&&) = delete;
  File& operator=(File&&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

[[noreturn]] void fail(const std::filesystem::path& path) {
  throw FaultError(fmt::format("{}: {}", path.string(), std::strerror(errno)));
}

void write_all(int descriptor, const std::byte* data, std::size_t bytes, const std::filesystem::path& path) {
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor, data, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail(path);
    data += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

bool read_all(int descriptor, void* data, std::size_t bytes) {
  auto* at = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const ssize_t got = ::read(descriptor, at, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

/// State and start time of a process (fields 3 and 22 of /proc/PID/stat); start 0 when there is none, or only a zombie.
std::uint64_t start_of(long process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string text;
  if (!std::getline(file, text)) return 0;
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return 0;
  const char state = text[name_end + 2];
  if (state == 'Z' || state == 'X') return 0;
  std::size_t at = name_end + 2;
  for (int field = 3; field < 22 && at != std::string::npos; ++field) at = text.find(' ', at + 1);
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at, nullptr, 10);
}

}  // namespace

Mailbox::Mailbox(std::filesystem::path folder, int rank, int ranks)
    : folder_(std::move(folder)), rank_(rank), ranks_(ranks) {
  if (::mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) fail(folder_);
  const std::filesystem::path name = member_path(rank_);
  const std::string text = fmt::format("{} {}\n", ::getpid(), start_of(::getpid()));
  const std::filesystem::path making = name.string() + ".new";
  {
    const File file(::open(making.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (file.get() < 0) fail(making);
    write_all(file.get(), reinterpret_cast<const std::byte*>(text.data()), text.size(), making);
  }
  if (::rename(making.c_str(), name.c_str()) != 0) fail(name);
}

std::filesystem::path Mailbox::member_path(int rank) const { return folder_ / fmt::format("member.{}", rank); }

std::filesystem::path Mailbox::message_path(Lane lane, std::uint64_t number, int sender, int receiver) const {
  return folder_ / fmt::format("{}{}.{}-{}", static_cast<char>(lane), number, sender, receiver);
}

void Mailbox::post(Lane lane, std::uint64_t number, const Header& header, std::span<const std::byte> data,
                   std::span<const int> receivers) {
  if (receivers.empty()) return;
  const std::filesystem::path making =
      folder_ / fmt::format("{}{}.{}.{}.new", static_cast<char>(lane), number, rank_, receivers.front());
  {
    const File file(::open(making.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (file.get() < 0) fail(making);
    Header complete = header;
    complete.data_bytes = static_cast<std::int64_t>(data.size());
    write_all(file.get(), reinterpret_cast<const std::byte*>(&complete), sizeof complete, making);
    write_all(file.get(), data.data(), data.size(), making);
  }
  for (const int receiver : receivers) {
    const std::filesystem::path path = message_path(lane, number, rank_, receiver);
    if (::link(making.c_str(), path.c_str()) != 0) fail(path);
  }
  ::unlink(making.c_str());
}

std::optional<Message> Mailbox::try_take(Lane lane, std::uint64_t number, int sender) {
  const std::filesystem::path path = message_path(lane, number, sender, rank_);
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) {
    if (errno == ENOENT) return std::nullopt;
    fail(path);
  }
  Message message;
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0) fail(path);
  const bool has_header = read_all(file.get(), &message.header, sizeof message.header);
  const auto expected = facts.st_size - static_cast<std::int64_t>(sizeof message.header);
  if (!has_header || message.header.data_bytes != expected) {
    throw FaultError(fmt::format("{}: not a message of this communicator", path.string()));
  }
  message.data.resize(static_cast<std::size_t>(expected));
  if (!read_all(file.get(), message.data.data(), message.data.size())) fail(path);
  ::unlink(path.c_str());
  return message;
}

std::string Mailbox::trouble_with(int sender) const {
  std::ifstream file(member_path(sender));
  long process = 0;
  std::uint64_t started = 0;
  if (!(file >> process >> started)) return {};
  if (start_of(process) == started) return {};
  return fmt::format("rank {} of {} (process {}) has ended", sender, ranks_, process);
}

void Mailbox::give_up(int sender, std::chrono::milliseconds timeout) const {
  const bool joined = std::filesystem::exists(member_path(sender));
  throw FaultError(fmt::format("rank {} of {} {} within {} s", sender, ranks_,
                               joined ? "did not make the same call" : "never joined the communicator",
                               std::chrono::duration_cast<std::chrono::seconds>(timeout).count()));
}

Message Mailbox::take(Lane lane, std::uint64_t number, int sender, std::chrono::milliseconds timeout,
                      const std::atomic<bool>& stop) {
  constexpr auto kShortest = std::chrono::microseconds(50);
  constexpr auto kLongest = std::chrono::microseconds(2000);
  constexpr auto kBetweenChecks = std::chrono::milliseconds(50);
  const auto deadline = Clock::now() + timeout;
  auto next_check = Clock::now() + kBetweenChecks;
  std::string trouble;
  for (std::chrono::microseconds pause = kShortest;; pause = std::min(pause * 2, kLongest)) {
    // Once more after its process was seen to have ended: it may have sent this in its last moments.
    if (auto message = try_take(lane, number, sender)) return std::move(*message);
    if (stop) throw FaultError("the communicator was aborted");
    if (!trouble.empty()) throw FaultError(trouble);
    const auto now = Clock::now();
    if (now >= deadline) give_up(sender, timeout);
    if (now >= next_check) {
      next_check = now + kBetweenChecks;
      trouble = trouble_with(sender);
    }
    if (trouble.empty()) std::this_thread::sleep_for(pause);
  }
}

}  // namespace vramfit::phantom
