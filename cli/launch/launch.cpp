#include "cli/launch/launch.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/process/signal_name.h"
#include "base/process/standard_streams.h"
#include "base/text/suggest.h"
#include "cli/launch/rank_process.h"
#include "cli/launch/shown_lines.h"
#include "cli/launch/signal_descriptor.h"
#include "cli/private_folder.h"

namespace vramfit {

namespace {

using Clock = std::chrono::steady_clock;

// Ranks that lose a peer fail about 20 ms later; waiting a little tells the cause from its consequences.
constexpr std::chrono::milliseconds kGrace{300}, kTermination{2000};
constexpr int kLastExitCode = static_cast<int>(ExitCode::outside_tolerance);
constexpr std::string_view kProgram = "vramfit-train: ", kWarning = "vramfit-train: warning: ";
// In the messages of executor/sharding and executor/place.
constexpr std::array<std::string_view, 2> kConsequences{"another rank ended", "stopped because another rank failed"};

bool is_set(const char* name) {
  return std::getenv(name) != nullptr;  // NOLINT(concurrency-mt-unsafe): no other thread
}

void set_threads(const LaunchOptions& options, EnvironmentChanges& environment) {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  const int processes = options.played ? 1 : options.ranks;
  const int threads = options.threads > 0 ? options.threads : std::max(1, cores / processes);
  for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}) {
    if (options.threads > 0 || !is_set(name)) environment.emplace_back(name, std::to_string(threads));
  }
  // A thread that waits for others of its rank spins for milliseconds, on a core that they may need.
  if (std::int64_t{threads} * processes > cores && !is_set("OMP_WAIT_POLICY")) {
    environment.emplace_back("OMP_WAIT_POLICY", "passive");
  }
}

RankStart start_of(const LaunchOptions& options, int rank, const std::string& store_file) {
  RankStart start{.program = options.program, .arguments = options.arguments, .environment = options.environment};
  const auto set = [&](const char* name, const std::string& value) { start.environment.emplace_back(name, value); };
  set("RANK", std::to_string(rank));
  const int local_world = options.ranks_per_node > 0 ? options.ranks_per_node : options.ranks;
  set("LOCAL_RANK", std::to_string(rank % local_world));
  set("LOCAL_WORLD_SIZE", std::to_string(local_world));
  set("WORLD_SIZE", std::to_string(options.ranks));
  set("VRAMFIT_STORE_FILE", store_file);
  set("GLOO_SOCKET_IFNAME", "lo");
  if (const int columns = terminal_columns(); columns > 0) set("VRAMFIT_TERMINAL_COLUMNS", std::to_string(columns));
  if (!is_set("NCCL_SOCKET_IFNAME")) set("NCCL_SOCKET_IFNAME", "lo");
  set_threads(options, start.environment);
  return start;
}

/// How likely a failed rank is the cause and not a consequence; larger is likelier.
int cause_weight(const RankProcess& rank) {
  if (rank.exit_signal() != 0) return 3;
  if (rank.exit_code() == static_cast<int>(ExitCode::out_of_memory)) return 2;
  const auto says = [&](std::string_view part) { return rank.last_error.find(part) != std::string::npos; };
  return std::ranges::any_of(kConsequences, says) ? 0 : 1;
}

/// This machine's name, cut at the first dot.
std::string node_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "this machine";
  const std::string text = printable(name.data(), 64);
  return text.substr(0, text.find('.'));
}

std::string cause_text(const RankProcess& rank) {
  if (const int signal = rank.exit_signal(); signal != 0) {
    return fmt::format("rank {} on {} was ended by signal {} ({}){}", rank.rank(), node_name(), signal,
                       signal_name(signal),
                       signal == SIGKILL ? "; if nobody did, the machine may be out of memory: see dmesg" : "");
  }
  const std::string why = rank.last_error.empty() ? fmt::format("exit code {}", rank.exit_code()) : rank.last_error;
  return why.starts_with("rank ") ? why : fmt::format("rank {}: {}", rank.rank(), why);
}

class Launch {
 public:
  explicit Launch(const LaunchOptions& options) {
    ranks_.reserve(static_cast<std::size_t>(options.ranks));
    for (int rank = 0; rank < options.ranks; ++rank) {
      if (!options.played || rank == *options.played)
        ranks_.emplace_back(rank, start_of(options, rank, folder_.path() + "/store"));
    }
    open_.assign(ranks_.size(), true);
  }

  int run() {
    while (std::ranges::any_of(ranks_, &RankProcess::running)) {
      wait_for_something();
      if (const int signal = signals_.take().number; signal != 0 && signal_ == 0) {
        signal_ = signal;
        begin_to_end(Clock::now());
      }
      read_all();
      reap();
      advance();
    }
    read_all();
    return result();
  }

 private:
  void wait_for_something() const {
    std::vector<pollfd> list{{signals_.descriptor(), POLLIN, 0}};
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (open_[i]) list.push_back({ranks_[i].error_pipe(), POLLIN, 0});
    }
    poll(list.data(), list.size(), ending_ ? 50 : 1000);
  }

  void read_all() {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (!open_[i]) continue;
      bool open = true;
      for (const std::string& line : ranks_[i].read_lines(open)) {
        if (line.starts_with(kProgram) && !line.starts_with(kWarning)) {
          ranks_[i].last_error = line.substr(kProgram.size());
        } else if (i == 0) {
          shown_.show(line);
        }
      }
      open_[i] = open;
    }
  }

  void reap() {
    for (RankProcess& rank : ranks_) {
      int status = 0;
      if (!rank.running() || waitpid(rank.process(), &status, WNOHANG) != rank.process()) continue;
      rank.ended(status);
      if (!rank.failed()) continue;
      if (!killing_) failed_.push_back(&rank);
      if (!ending_) begin_to_end(Clock::now() + kGrace);
    }
  }

  void begin_to_end(Clock::time_point when) {
    ending_ = true;
    terminate_at_ = std::min(terminate_at_, when);
  }

  /// SIGTERM when the grace is over, SIGKILL when that did not help.
  void advance() {
    if (!ending_ || Clock::now() < terminate_at_) return;
    send_all(killing_ ? SIGKILL : SIGTERM);
    if (!killing_) send_all(SIGCONT);  // a stopped rank takes no other signal but SIGKILL
    killing_ = true;
    terminate_at_ = Clock::now() + kTermination;
  }

  void send_all(int signal) const {
    for (const RankProcess& rank : ranks_) {
      if (rank.running()) rank.send(signal);
    }
  }

  int result() {
    shown_.end_line();
    if (signal_ != 0) {
      std::fprintf(stderr, "vramfit: ended by signal %d; all ranks were stopped\n", signal_);
      return 128 + signal_;
    }
    if (failed_.empty()) return 0;
    const RankProcess* cause =
        *std::ranges::max_element(failed_, {}, [](const RankProcess* rank) { return cause_weight(*rank); });
    if (cause->exit_code() == kReaderGoneCode) return kReaderGoneCode;
    complain("vramfit", cause_text(*cause));
    if (cause->exit_signal() != 0) return 128 + cause->exit_signal();
    const int code = cause->exit_code();
    return code > 0 && code <= kLastExitCode ? code : static_cast<int>(ExitCode::failed);
  }

  SignalDescriptor signals_;     // before the ranks: none of their ends may be missed
  PrivateFolder folder_{"run"};  // where the ranks meet
  std::vector<RankProcess> ranks_;
  std::vector<bool> open_;
  ShownLines shown_;
  std::vector<const RankProcess*> failed_;  // in the order they were seen, before any was made to end
  int signal_ = 0;
  bool ending_ = false, killing_ = false;
  Clock::time_point terminate_at_ = Clock::time_point::max();
};

}  // namespace

int launch_ranks(const LaunchOptions& options) { return Launch(options).run(); }

}  // namespace vramfit
