// Tells all ranks about a failure of any rank within a second or two, whatever collectives notice (NCCL: nothing for
// ten minutes). Each rank keeps a connection to rank 0. Rank 0 sees which ranks report, vanish or do not answer,
// decides which failure came first, and tells all ranks. docs/launching.md has the messages.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "executor/place/line_socket.h"

namespace vramfit {

/// A collective or an exchange failed because another rank ended or did not answer: a consequence, rarely the cause.
struct PeerLost : FaultError {
  using FaultError::FaultError;
};

/// While one exists on any thread, this rank is waiting for others; otherwise it is busy with work of its own.
class WaitingScope {
 public:
  WaitingScope();
  ~WaitingScope();
  WaitingScope(const WaitingScope&) = delete;
  WaitingScope& operator=(const WaitingScope&) = delete;
  WaitingScope(WaitingScope&&) = delete;
  WaitingScope& operator=(WaitingScope&&) = delete;
};

struct WatchOptions {
  int rank = 0, world = 1;
  std::string node;                  // for messages
  int listen_descriptor = -1;        // rank 0: where the others connect
  bool takes_signals = false;        // SIGINT, SIGTERM and SIGHUP are reported before they end this process
  std::function<bool()> is_waiting;  // empty: whether a WaitingScope lives
  /// From the watch's thread, with the line to end with: another rank failed and this one has not ended by itself, or
  /// (number not 0) a signal came.
  std::function<void(const std::string& line, int signal)> end;
  std::chrono::milliseconds grace{2000};  // time to end by itself
};

class FailureWatch {
 public:
  /// With takes_signals the signals are blocked in this thread, and in those it makes from then on.
  explicit FailureWatch(WatchOptions options);
  ~FailureWatch();
  FailureWatch(const FailureWatch&) = delete;
  FailureWatch& operator=(const FailureWatch&) = delete;
  FailureWatch(FailureWatch&&) = delete;
  FailureWatch& operator=(FailureWatch&&) = delete;

  /// Rank 0: the text that the others need to join.
  std::string invitation() const;
  /// Other ranks, once: connects to rank 0 at `host`. Throws FaultError.
  void join(const std::string& host, const std::string& invitation);

  /// This rank failed by itself, or because others did; the line to end with, which names rank, node and reason of what
  /// came first. Waits up to 3 seconds for rank 0 to know.
  std::string failed(const std::string& what);
  std::string lost_peer(const std::string& what);
  /// This rank has finished its work: from now on, neither its exit nor another rank's is a failure.
  void done();

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    LineSocket socket;
    int rank = -1;  // -1: has not said the token yet
    std::string node;
    bool late = false, answered = false, busy = false, done = false;
  };
  struct Cause {
    int rank = -1;
    std::string text;  // "rank 2 on node02: out of memory: ..."
  };
  struct Request {
    bool late = false;
    std::string text;
  };

  void run();
  void accept_one();
  void read_all(const std::vector<pollfd>& ready);
  void handle(Peer& peer, const std::string& line);
  void handle_from_zero(const std::string& line);
  void closed(const Peer& peer);
  void take_requests();
  void take_signal();
  void report(bool late, const std::string& text);
  void late(const std::string& text);
  void say_done();
  void call_roll();
  void keep_time();
  int wait_milliseconds() const;
  void decide(int rank, const std::string& text);
  void learn(Cause cause);
  Cause verdict() const;
  std::string own(const std::string& text) const;
  std::string line_of(const Cause& cause) const;
  std::string ask(bool late, const std::string& text);
  void wake() const;

  WatchOptions options_;
  std::string token_;
  int wake_ = -1, signals_ = -1;
  std::vector<Peer> peers_;  // rank 0: all others; the others: rank 0
  std::vector<bool> came_;   // rank 0: who has said hello
  std::string zero_node_ = "?", first_late_;
  Clock::time_point roll_call_at_ = Clock::time_point::max(), verdict_at_ = Clock::time_point::max(),
                    end_at_ = Clock::time_point::max();

  mutable std::mutex mutex_;
  std::condition_variable known_;
  std::optional<Cause> cause_;
  std::vector<Request> requests_;
  std::optional<LineSocket> joining_;
  bool joined_ = false;
  bool main_ends_ = false, own_late_ = false, said_done_ = false, zero_done_ = false;
  std::atomic<bool> done_{false}, stopping_{false};
  std::thread thread_;
};

}  // namespace vramfit
