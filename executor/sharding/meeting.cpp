#include "executor/sharding/meeting.h"

#include <c10/util/Logging.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <string>
#include <system_error>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "base/error.h"
#include "base/text/suggest.h"
#include "executor/place/error_file.h"
#include "executor/place/first_line.h"
#include "executor/place/line_socket.h"
#include "executor/place/own_address.h"
#include "executor/sharding/backends_torch.h"
#include "executor/sharding/listen_socket.h"

namespace vramfit {

namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

int listen_for(const RankPlace& place) {
  if (!place.on_one_node && resolves_to_loopback(place.master_address)) {
    throw InputError(
        fmt::format("MASTER_ADDR {} is this machine's loopback here, which other machines can't reach; set "
                    "it to this machine's address in their network",
                    printable(place.master_address, 80)));
  }
  return listen_on(place.master_address, place.master_port);
}

/// In a few words; c10d's own account of it takes lines and names wrong addresses (LibTorch 2.11).
std::string why_not_reached(const RankPlace& place) {
  try {
    connect_to(place.master_address, place.master_port, 2);
    return "what listens there is not a PyTorch store";
  } catch (const FaultError& error) {
    return error.what();
  }
}

/// c10d retries what fails while ranks meet and warns each time, with stack traces; what is final is said by us.
void quieten_c10d() {
  setenv("TORCH_CPP_LOG_LEVEL", "FATAL", 0);
  c10::initLogging();  // C++ programs don't read the variable otherwise
}

/// Jobs that meet at one place by mistake don't read each other's keys.
StorePtr keys_of_job(const RankPlace& place, StorePtr store) {
  return c10::make_intrusive<c10d::PrefixStore>("vramfit " + place.job, std::move(store));
}

/// c10d tries to open a file for as long as ranks may take to meet; what can't be opened now never can be.
void require_store_file(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (descriptor < 0) throw std::system_error(errno, std::generic_category());
  ::close(descriptor);
}

/// Reachable by who may enter its folder, where a port on loopback is reachable by every user of the machine.
StorePtr open_file_store(const RankPlace& place, std::chrono::milliseconds timeout) {
  try {
    require_store_file(place.store_file);
    auto store = c10::make_intrusive<c10d::FileStore>(place.store_file, place.world);
    store->setTimeout(timeout);
    return keys_of_job(place, std::move(store));
  } catch (const std::exception& error) {
    throw FaultError(
        fmt::format("environment: VRAMFIT_STORE_FILE={}: ranks can't meet there: {}; unset it, `vramfit run` sets it",
                    printable(place.store_file), printable(first_line(error))));
  }
}

StorePtr open_store(const RankPlace& place, std::chrono::milliseconds timeout) {
  if (!place.store_file.empty()) return open_file_store(place, timeout);
  c10d::TCPStoreOptions store;
  store.port = static_cast<std::uint16_t>(place.master_port);
  store.isServer = place.rank == 0 && !place.store_is_hosted;
  store.numWorkers = static_cast<std::size_t>(place.world);
  store.timeout = timeout;
  store.waitWorkers = false;
  if (store.isServer) store.masterListenFd = listen_for(place);
  try {
    return keys_of_job(place, c10::make_intrusive<c10d::TCPStore>(place.master_address, store));
  } catch (const std::exception&) {
    throw FaultError(
        fmt::format("rank {} on {}: no answer from rank 0 at {} port {} within {} s ({}); is it started, and can this "
                    "machine reach it there (MASTER_ADDR, MASTER_PORT, firewall)?",
                    place.rank, node_name(), place.master_address, place.master_port, timeout.count() / 1000,
                    why_not_reached(place)));
  }
}

/// Where rank 0's watch listens: at the store's address if that is this machine's to the others as well.
int watch_descriptor(const RankPlace& place) {
  if (place.on_one_node) return listen_on("127.0.0.1", 0);
  return listen_on(resolves_to_loopback(place.master_address) ? "0.0.0.0" : place.master_address, 0);
}

[[noreturn]] void end_process(const std::string& line, int signal) {
  report_end(line);
  if (signal != 0) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    std::signal(signal, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
    raise(signal);
  }
  _exit(static_cast<int>(ExitCode::failed));
}

std::string meeting_point(const RankPlace& place) {
  if (!place.store_file.empty()) return printable(place.store_file);
  return fmt::format("{} port {}", place.master_address, place.master_port);
}

/// Longer than `vramfit run` takes to end all ranks after the first that failed.
constexpr std::chrono::seconds kLauncherEndsUs{20};

class StoreMeeting final : public Meeting {
 public:
  StoreMeeting(const RankPlace& place, std::chrono::milliseconds timeout)
      : watch_({.rank = place.rank,
                .world = place.world,
                .node = node_name(),
                .listen_descriptor = place.rank == 0 ? watch_descriptor(place) : -1,
                .takes_signals = true,
                .is_waiting = {},
                .end = end_process}),
        store(open_store(place, timeout)) {
    constexpr const char* kKey = "watch";
    try {
      if (place.rank == 0) {
        const std::string invitation = watch_.invitation();
        store->set(kKey, invitation);
        return;
      }
      const std::vector<std::uint8_t> bytes = store->get(kKey);
      join(place, {bytes.begin(), bytes.end()});
    } catch (const std::exception& error) {
      throw FaultError(fmt::format("rank {} on {}: could not reach rank 0 at {} within {} s: {}", place.rank,
                                   node_name(), meeting_point(place), timeout.count() / 1000, first_line(error)));
    }
  }

  FailureWatch& watch() override { return watch_; }

 private:
  /// A file outlives rank 0, so its invitation may be that of a rank that has already failed. `vramfit run` is then
  /// about to end this rank and to show rank 0's reason, which ours must not overtake.
  void join(const RankPlace& place, const std::string& invitation) {
    try {
      watch_.join(place.on_one_node ? "127.0.0.1" : place.master_address, invitation);
    } catch (const std::exception&) {
      if (!place.store_file.empty()) std::this_thread::sleep_for(kLauncherEndsUs);
      throw;
    }
  }

  FailureWatch watch_;  // before the store: its threads must not take signals

 public:
  StorePtr store;
};

}  // namespace

std::unique_ptr<Meeting> meet(const RankPlace& place, std::chrono::milliseconds timeout) {
  quieten_c10d();
  turn_off_flight_recorder();
  return std::make_unique<StoreMeeting>(place, timeout);
}

c10::intrusive_ptr<c10d::Store> store_of(Meeting& meeting) { return dynamic_cast<StoreMeeting&>(meeting).store; }

}  // namespace vramfit
