#include "executor/place/failure_watch.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstring>
#include <utility>

#include "base/text/suggest.h"

namespace vramfit {

namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kRollCallAfter{300};  // those that ended are seen by then
constexpr std::chrono::milliseconds kAnswerWithin{1000}, kVerdictWithin{3000};
constexpr std::ptrdiff_t kStrangers = 64;  // connections that have not said the token
constexpr std::size_t kLongestText = 2000;
constexpr std::string_view kVanished = " ended without an error message: it was killed, or its machine failed";

std::atomic<int> waiting{0};

/// 16 random bytes in hexadecimal: who has not read it in the store is not of this job.
std::string random_token() {
  std::array<unsigned char, 16> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw FaultError("getrandom failed");
  }
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

/// Cuts `text` at its first blank and returns what was before.
std::string take_word(std::string& text) {
  const std::size_t blank = text.find(' ');
  std::string word = text.substr(0, blank);
  text.erase(0, blank == std::string::npos ? blank : blank + 1);
  return word;
}

int number_or(const std::string& text, int otherwise) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : otherwise;
}

}  // namespace

WaitingScope::WaitingScope() { ++waiting; }
WaitingScope::~WaitingScope() { --waiting; }

FailureWatch::FailureWatch(WatchOptions options) : options_(std::move(options)) {
  if (!options_.is_waiting) options_.is_waiting = [] { return waiting > 0; };
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) throw FaultError("eventfd failed");
  if (options_.takes_signals) {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    signals_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  if (options_.rank == 0) {
    token_ = random_token();
    came_.assign(static_cast<std::size_t>(options_.world), false);
    zero_node_ = options_.node;
  }
  thread_ = std::thread([this] { run(); });
}

FailureWatch::~FailureWatch() {
  stopping_ = true;
  wake();
  if (thread_.joinable()) thread_.join();
  for (const int descriptor : {wake_, signals_, options_.listen_descriptor}) {
    if (descriptor >= 0) close(descriptor);
  }
}

std::string FailureWatch::invitation() const {
  return fmt::format("{} {} {}", port_of(options_.listen_descriptor), token_, options_.node);
}

void FailureWatch::join(const std::string& host, const std::string& invitation) {
  std::string rest = invitation;
  const int port = number_or(take_word(rest), 0);
  const std::string token = take_word(rest);
  zero_node_ = printable(rest, 64);
  LineSocket socket = connect_to(host, port, 10);
  if (!socket.send(fmt::format("hello {} {} {}", token, options_.rank, options_.node))) {
    throw FaultError(fmt::format("rank 0 on {} closed the connection", zero_node_));
  }
  const std::scoped_lock lock(mutex_);
  joining_ = std::move(socket);
  joined_ = true;
  wake();
}

std::string FailureWatch::failed(const std::string& what) { return ask(false, what); }
std::string FailureWatch::lost_peer(const std::string& what) { return ask(true, what); }

std::string FailureWatch::ask(bool late, const std::string& text) {
  std::unique_lock lock(mutex_);
  main_ends_ = true;
  own_late_ = late;
  if (!joined_ && options_.rank != 0) return own(text);
  requests_.push_back({.late = late, .text = text});
  wake();
  known_.wait_for(lock, kVerdictWithin, [&] { return cause_.has_value(); });
  if (cause_) return line_of(*cause_);
  return own(text) + (options_.rank == 0 ? "" : fmt::format("; rank 0 on {} does not respond", zero_node_));
}

void FailureWatch::done() {
  done_ = true;
  wake();
}

void FailureWatch::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
}

std::string FailureWatch::own(const std::string& text) const {
  return fmt::format("rank {} on {}: {}", options_.rank, options_.node, text);
}

std::string FailureWatch::line_of(const Cause& cause) const {
  return cause.rank == options_.rank ? cause.text : own("stopped because another rank failed: " + cause.text);
}

void FailureWatch::run() {
  while (!stopping_) {
    std::vector<pollfd> list{{wake_, POLLIN, 0}, {signals_, POLLIN, 0}, {options_.listen_descriptor, POLLIN, 0}};
    for (const Peer& peer : peers_) list.push_back({peer.socket.descriptor(), POLLIN, 0});
    poll(list.data(), list.size(), wait_milliseconds());
    std::uint64_t count = 0;
    while (::read(wake_, &count, sizeof count) > 0) {
    }
    take_requests();
    read_all(list);
    if ((list[2].revents & POLLIN) != 0) accept_one();
    take_signal();
    say_done();
    keep_time();
  }
  take_requests();
  say_done();
}

void FailureWatch::accept_one() {
  const int descriptor = accept4(options_.listen_descriptor, nullptr, nullptr, SOCK_CLOEXEC);
  if (descriptor < 0) return;
  LineSocket socket(descriptor);
  // The one that has been silent for longest makes room, so that strangers can't keep a rank away.
  const auto is_stranger = [](const Peer& peer) { return peer.rank < 0; };
  if (std::ranges::count_if(peers_, is_stranger) >= kStrangers) peers_.erase(std::ranges::find_if(peers_, is_stranger));
  peers_.push_back({.socket = std::move(socket), .node = ""});
}

void FailureWatch::read_all(const std::vector<pollfd>& ready) {
  std::vector<std::size_t> gone;
  for (std::size_t i = 0; i + 3 < ready.size(); ++i) {
    if (ready[i + 3].revents == 0) continue;
    bool open = true;
    for (const std::string& line : peers_[i].socket.read_lines(open)) {
      handle(peers_[i], line);
      if (options_.rank == 0 && peers_[i].rank < 0) open = false;  // a stranger
    }
    if (!open) gone.push_back(i);
  }
  for (const std::size_t i : gone) closed(peers_[i]);
  for (auto i = gone.rbegin(); i != gone.rend(); ++i) peers_.erase(peers_.begin() + static_cast<std::ptrdiff_t>(*i));
}

void FailureWatch::handle(Peer& peer, const std::string& line) {
  std::string rest = line;
  const std::string word = take_word(rest);
  if (options_.rank != 0) return handle_from_zero(line);
  if (peer.rank < 0) {
    const bool knows = word == "hello" && take_word(rest) == token_;
    const int rank = knows ? number_or(take_word(rest), -1) : -1;
    if (rank < 1 || rank >= options_.world || came_[static_cast<std::size_t>(rank)]) return;
    came_[static_cast<std::size_t>(rank)] = true;
    peer.rank = rank;
    peer.node = printable(rest, 64);
    const std::scoped_lock lock(mutex_);
    if (cause_) peer.socket.send(fmt::format("cause {} {}", cause_->rank, cause_->text));
  } else if (word == "failed") {
    decide(peer.rank, rest);
  } else if (word == "late") {
    peer.late = true;
    late(rest);
  } else if (word == "at") {
    peer.answered = true;
    peer.busy = rest == "busy";
  } else if (word == "done") {
    peer.done = true;
  }
}

void FailureWatch::handle_from_zero(const std::string& line) {
  std::string rest = line;
  const std::string word = take_word(rest);
  if (word == "cause") {
    const int rank = number_or(take_word(rest), -1);
    learn({.rank = rank, .text = printable(rest, kLongestText)});
  } else if (word == "where") {
    const std::scoped_lock lock(mutex_);
    peers_.front().socket.send(own_late_ || options_.is_waiting() ? "at waiting" : "at busy");
  } else if (word == "done") {
    zero_done_ = true;
  }
}

void FailureWatch::closed(const Peer& peer) {
  if (options_.rank != 0) {
    if (!zero_done_) learn({.rank = 0, .text = fmt::format("rank 0 on {}{}", zero_node_, kVanished)});
  } else if (peer.rank > 0 && !peer.done) {
    decide(peer.rank, fmt::format("rank {} on {}{}", peer.rank, peer.node, kVanished));
  }
}

void FailureWatch::take_requests() {
  std::vector<Request> requests;
  {
    const std::scoped_lock lock(mutex_);
    requests.swap(requests_);
    if (joining_) peers_.push_back({.socket = std::move(*joining_), .rank = 0, .node = zero_node_});
    joining_.reset();
  }
  for (const Request& request : requests) report(request.late, own(printable(request.text, kLongestText)));
}

void FailureWatch::report(bool is_late, const std::string& text) {
  if (options_.rank != 0) {
    if (!peers_.empty()) peers_.front().socket.send((is_late ? "late " : "failed ") + text);
  } else if (is_late) {
    late(text);
  } else {
    decide(0, text);
  }
}

void FailureWatch::take_signal() {
  signalfd_siginfo info{};
  if (signals_ < 0 || ::read(signals_, &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return;
  const auto signal = static_cast<int>(info.ssi_signo);
  const std::string text = own(fmt::format("ended by signal {} ({})", signal, sigabbrev_np(signal)));
  report(false, text);
  std::string line = text;
  {
    const std::scoped_lock lock(mutex_);
    if (cause_) line = line_of(*cause_);
  }
  if (options_.end) options_.end(line, signal);
}

void FailureWatch::late(const std::string& text) {
  if (!first_late_.empty()) return;
  first_late_ = printable(text, kLongestText);
  roll_call_at_ = Clock::now() + kRollCallAfter;
}

void FailureWatch::say_done() {
  if (!done_ || said_done_) return;
  said_done_ = true;
  for (const Peer& peer : peers_) peer.socket.send("done");
}

void FailureWatch::call_roll() {
  for (Peer& peer : peers_) {
    peer.answered = false;
    if (peer.rank > 0) peer.socket.send("where");
  }
  verdict_at_ = Clock::now() + kAnswerWithin;
}

void FailureWatch::keep_time() {
  const Clock::time_point now = Clock::now();
  if (now >= roll_call_at_) {
    roll_call_at_ = Clock::time_point::max();
    call_roll();
  }
  if (now >= verdict_at_) {
    verdict_at_ = Clock::time_point::max();
    const Cause cause = verdict();
    decide(cause.rank, cause.text);
  }
  if (now < end_at_) return;
  end_at_ = Clock::time_point::max();
  std::string line;
  {
    const std::scoped_lock lock(mutex_);
    if (main_ends_ || done_) return;
    line = line_of(*cause_);
  }
  if (options_.end) options_.end(line, 0);
}

int FailureWatch::wait_milliseconds() const {
  const Clock::time_point next = std::min({roll_call_at_, verdict_at_, end_at_});
  if (next == Clock::time_point::max()) return -1;
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
  return static_cast<int>(std::max<std::int64_t>(0, wait.count()));
}

/// Ranks wait for one that did not come, does not answer, or does something else; in this order.
FailureWatch::Cause FailureWatch::verdict() const {
  for (int rank = 1; rank < options_.world; ++rank) {
    if (!came_[static_cast<std::size_t>(rank)]) {
      return {rank,
              fmt::format("rank {} never connected: it was not started, or it ended before it could report why", rank)};
    }
  }
  for (const Peer& peer : peers_) {
    if (peer.rank > 0 && !peer.late && !peer.answered) {
      return {peer.rank, fmt::format("rank {} on {} does not respond: it is stopped, or its machine or network failed",
                                     peer.rank, peer.node)};
    }
  }
  const std::string_view busy =
      " did not join the operation that the other ranks wait for: it is busy with something else";
  for (const Peer& peer : peers_) {
    if (peer.rank > 0 && !peer.late && peer.busy) {
      return {peer.rank, fmt::format("rank {} on {}{}", peer.rank, peer.node, busy)};
    }
  }
  const std::scoped_lock lock(mutex_);
  if (!own_late_ && !options_.is_waiting()) return {0, fmt::format("rank 0 on {}{}", options_.node, busy)};
  return {-1, first_late_};
}

/// Rank 0: the first cause counts.
void FailureWatch::decide(int rank, const std::string& text) {
  const Cause cause{.rank = rank, .text = printable(text, kLongestText)};
  {
    const std::scoped_lock lock(mutex_);
    if (cause_ || done_) return;
  }
  for (const Peer& peer : peers_) {
    if (peer.rank > 0) peer.socket.send(fmt::format("cause {} {}", rank, cause.text));
  }
  learn(cause);
}

void FailureWatch::learn(Cause cause) {
  const std::scoped_lock lock(mutex_);
  if (cause_) return;
  cause_ = std::move(cause);
  if (!main_ends_ && !done_) end_at_ = Clock::now() + options_.grace;
  known_.notify_all();
}

}  // namespace vramfit
