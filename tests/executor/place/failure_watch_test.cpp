#include "executor/place/failure_watch.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <future>
#include <map>
#include <memory>

namespace vramfit {

namespace {

using namespace std::chrono_literals;

int listen_on_loopback() {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(listen(descriptor, 16) == 0);
  return descriptor;
}

/// The watches of a world of ranks in this process; "rank R on nR". `waiting` says who waits for others.
class World {
 public:
  explicit World(int ranks, const std::map<int, bool>& waiting = {}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const bool waits = !waiting.contains(rank) || waiting.at(rank);
      watches_.push_back(std::make_unique<FailureWatch>(
          WatchOptions{.rank = rank,
                       .world = ranks,
                       .node = fmt::format("n{}", rank),
                       .listen_descriptor = rank == 0 ? listen_on_loopback() : -1,
                       .takes_signals = false,
                       .is_waiting = [waits] { return waits; },
                       .end = [this, rank](const std::string& line, int /*signal*/) { ended(rank, line); },
                       .grace = 50ms}));
    }
  }

  FailureWatch& rank(int rank) { return *watches_.at(static_cast<std::size_t>(rank)); }
  void join(int other) { rank(other).join("127.0.0.1", rank(0).invitation()); }
  void join_all() {
    for (int other = 1; other < static_cast<int>(watches_.size()); ++other) join(other);
  }
  /// As a kill would.
  void kill(int rank) { watches_.at(static_cast<std::size_t>(rank)).reset(); }

  /// What the watch of a rank ended it with; "" when it did not within a minute.
  std::string line_of(int rank) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 60s, [&] { return lines_.contains(rank); });
    return lines_[rank];
  }
  bool nobody_ended() {
    std::unique_lock lock(mutex_);
    return !changed_.wait_for(lock, 300ms, [&] { return !lines_.empty(); });
  }

 private:
  void ended(int rank, const std::string& line) {
    const std::scoped_lock lock(mutex_);
    lines_[rank] = line;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, std::string> lines_;
  std::vector<std::unique_ptr<FailureWatch>> watches_;
};

}  // namespace

TEST_CASE("a rank that fails says so itself, and every other rank ends with its reason") {
  World world(4);
  world.join_all();
  CHECK(world.rank(2).failed("out of memory: 12 bytes") == "rank 2 on n2: out of memory: 12 bytes");
  for (const int other : {0, 1, 3}) {
    CHECK(world.line_of(other) ==
          fmt::format("rank {0} on n{0}: stopped because another rank failed: rank 2 on n2: out of memory: 12 bytes",
                      other));
  }
}

TEST_CASE("a rank that vanishes is named by all others, rank 0 as well") {
  World world(3);
  world.join_all();
  world.kill(2);
  CHECK(world.line_of(1).find("rank 2 on n2 ended without an error message") != std::string::npos);
  World headless(3);
  headless.join_all();
  headless.kill(0);
  CHECK(headless.line_of(2).find("rank 0 on n0 ended without an error message") != std::string::npos);
}

TEST_CASE("what failed first is the cause of what fails after it") {
  World world(3);
  world.join_all();
  CHECK(world.rank(0).failed("no space left") == "rank 0 on n0: no space left");
  CHECK(world.rank(1).failed("its own trouble") ==
        "rank 1 on n1: stopped because another rank failed: rank 0 on n0: no space left");
  CHECK(world.rank(2).lost_peer("reducing failed") ==
        "rank 2 on n2: stopped because another rank failed: rank 0 on n0: no space left");
}

TEST_CASE("a rank that does something else is named by those that waited for it in vain") {
  World world(3, {{2, false}});
  world.join_all();
  const std::string line = world.rank(1).lost_peer("gathering parameters failed: timed out");
  CHECK(line.find("rank 2 on n2 did not join the operation that the other ranks wait for") != std::string::npos);
  CHECK(world.line_of(2).starts_with("rank 2 on n2 did not join"));
}

TEST_CASE("a rank that does not answer is named before one that is busy") {
  World world(4, {{1, false}, {3, true}});
  world.join(1);
  world.join(3);
  std::string invitation = world.rank(0).invitation(), token = invitation.substr(invitation.find(' ') + 1);
  token = token.substr(0, token.find(' '));
  const LineSocket stopped = connect_to("127.0.0.1", std::stoi(invitation), 5);
  REQUIRE(stopped.send("hello " + token + " 2 n2"));
  CHECK(world.rank(0).lost_peer("timed out").find("rank 2 on n2 does not respond") != std::string::npos);
}

TEST_CASE("a rank that never connected is named") {
  World world(3);
  world.join(1);
  CHECK(world.rank(1).lost_peer("not all 3 ranks connected").find("rank 2 never connected") != std::string::npos);
}

TEST_CASE("where all wait, what the first one saw is all that can be said") {
  World world(2);
  world.join_all();
  auto other = std::async(std::launch::async, [&] { return world.rank(1).lost_peer("reducing timed out"); });
  CHECK(world.rank(0).lost_peer("reducing timed out").find("reducing timed out") != std::string::npos);
  CHECK(other.get().find("reducing timed out") != std::string::npos);
}

TEST_CASE("ranks that are done may go in any order") {
  World world(3);
  world.join_all();
  for (const int rank : {2, 0, 1}) world.rank(rank).done();
  for (const int rank : {2, 0, 1}) world.kill(rank);
  CHECK(world.nobody_ended());
}

TEST_CASE("a failure before rank 0 was met is this rank's own, and no answer of rank 0 is missed") {
  World world(2);
  CHECK(world.rank(1).failed("plan.json: can't be read") == "rank 1 on n1: plan.json: can't be read");
}

TEST_CASE("strangers, wrong tokens and floods change nothing") {
  World world(3);
  world.join(1);
  const int port = std::stoi(world.rank(0).invitation());
  std::vector<LineSocket> strangers;
  for (const char* line :
       {"", "GET / HTTP/1.1", "hello 0123 2 n2", "failed rank 1: made up", "cause 1 made up", "done"}) {
    strangers.push_back(connect_to("127.0.0.1", port, 5));
    strangers.back().send(line);
  }
  strangers.push_back(connect_to("127.0.0.1", port, 5));
  strangers.back().send(std::string(4000, 'x'));
  for (int i = 0; i < 100; ++i) strangers.push_back(connect_to("127.0.0.1", port, 5));
  CHECK(world.nobody_ended());
  world.join(2);
  CHECK(world.rank(2).failed("a true one") == "rank 2 on n2: a true one");
  CHECK(world.line_of(1).find("a true one") != std::string::npos);
}

TEST_CASE("a reason with control characters reaches others as one harmless line") {
  World world(2);
  world.join_all();
  world.rank(1).failed("bad\nname \x1b[2J");
  CHECK(world.line_of(0).find("bad?name ?[2J") != std::string::npos);
}

}  // namespace vramfit
