#include "cli/rehearse/ghosts/ghost_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <set>

#include "base/error.h"
#include "cli/rehearse/ghosts/store_protocol.h"

namespace vramfit {

namespace {

constexpr std::size_t kReadAtOnce = 64 << 10;
constexpr std::size_t kLongestMessage = 256 << 20;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;  // of all values
constexpr std::size_t kMostClients = 1024;
constexpr std::size_t kKept = 16;
constexpr std::uint8_t kReady = 0, kNotReady = 1, kStopWaiting = 0, kWaitCanceled = 1;

struct Client {
  explicit Client(int descriptor) : socket(descriptor) {}
  ~Client() { ::close(socket); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  Client(Client&&) = delete;
  Client& operator=(Client&&) = delete;

  int socket;
  std::string in, out;
  bool validated = false, ended = false;
  std::vector<std::string> awaited;
};

}  // namespace

class GhostStore::Server {
 public:
  Server(GhostWorld world, int listener) : keys_(world), listener_(listener), wake_(eventfd(0, EFD_CLOEXEC)) {
    if (wake_ < 0) throw FaultError("rehearse: cannot make an eventfd");
    fcntl(listener_, F_SETFL, O_NONBLOCK);
  }
  ~Server() { ::close(wake_); }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  Server(Server&&) = delete;
  Server& operator=(Server&&) = delete;

  void run();
  void stop() {
    stopping_ = true;
    const std::uint64_t one = 1;
    if (::write(wake_, &one, sizeof one) < 0) return;  // the flag is seen at the next event
  }
  GhostReport report() const {
    const std::lock_guard lock(mutex_);
    return report_;
  }

 private:
  void accept_all();
  void read_from(Client& client);
  void write_to(Client& client);
  void answer_all(Client& client);
  void answer(Client& client, const StoreMessage& message);
  void answer_value(Client& client, const StoreMessage& message);
  bool are_there(const std::vector<std::string>& keys);
  void wait_for(Client& client, const std::vector<std::string>& keys);
  void wake_waiting();
  void refuse(Client& client, const std::string& why);
  void publish();

  GhostKeys keys_;
  int listener_, wake_;
  std::atomic<bool> stopping_{false};
  std::list<Client> clients_;
  std::set<std::string> never_set_;
  std::vector<std::string> refused_;
  mutable std::mutex mutex_;
  GhostReport report_;
};

void GhostStore::Server::run() {
  while (!stopping_) {
    const short newcomers = clients_.size() < kMostClients ? POLLIN : 0;
    std::vector<pollfd> watched{{wake_, POLLIN, 0}, {listener_, newcomers, 0}};
    for (const Client& client : clients_) {
      watched.push_back({client.socket, static_cast<short>(client.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    }
    if (::poll(watched.data(), watched.size(), -1) < 0 && errno != EINTR) return;
    std::size_t at = 2;
    for (Client& client : clients_) {
      const short events = watched[at++].revents;
      if ((events & (POLLIN | POLLERR | POLLHUP)) != 0) read_from(client);
      if (!client.ended && !client.out.empty()) write_to(client);
    }
    clients_.remove_if([](const Client& client) { return client.ended; });
    if ((watched[1].revents & POLLIN) != 0) accept_all();
    publish();
  }
}

void GhostStore::Server::accept_all() {
  while (clients_.size() < kMostClients) {
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket < 0) return;
    const int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    clients_.emplace_back(socket);
  }
}

void GhostStore::Server::read_from(Client& client) {
  std::string buffer(kReadAtOnce, '\0');
  const ssize_t got = ::recv(client.socket, buffer.data(), buffer.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    client.ended = true;
    return;
  }
  client.in.append(buffer, 0, static_cast<std::size_t>(got));
  try {
    answer_all(client);
  } catch (const std::exception& error) {
    refuse(client, error.what());
  }
}

void GhostStore::Server::answer_all(Client& client) {
  std::size_t done = 0, taken = 0;
  while (!client.ended) {
    const auto message = parse_store_message(std::string_view(client.in).substr(done), taken);
    if (!message) break;
    done += taken;
    answer(client, *message);
  }
  client.in.erase(0, done);
  if (client.in.size() > kLongestMessage) throw InputError("store: a message that does not end");
}

void GhostStore::Server::refuse(Client& client, const std::string& why) {
  client.ended = true;
  if (refused_.size() < kKept) refused_.push_back(why);
}

void GhostStore::Server::write_to(Client& client) {
  const ssize_t sent = ::send(client.socket, client.out.data(), client.out.size(), MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (sent < 0) {
    client.ended = true;
    return;
  }
  client.out.erase(0, static_cast<std::size_t>(sent));
}

void GhostStore::Server::answer(Client& client, const StoreMessage& message) {
  if (!client.validated) {
    if (message.request != StoreRequest::validate || message.number != kStoreMagic) {
      return refuse(client, "store: a client that does not begin as torch's do");
    }
    client.validated = true;
    return;
  }
  switch (message.request) {
    case StoreRequest::validate:
      return;
    case StoreRequest::ping:
      return put_nonce(client.out, message.number);
    case StoreRequest::check:
      return put_byte(client.out, are_there(message.keys) ? kReady : kNotReady);
    case StoreRequest::wait:
      return wait_for(client, message.keys);
    case StoreRequest::barrier:  // newer clients: all others have arrived
      keys_.add(message.keys[0], 1);
      return put_byte(client.out, kStopWaiting);
    case StoreRequest::cancel_wait:
      for (const std::string& key : client.awaited) {
        if (!keys_.has(key) && never_set_.size() < kKept) never_set_.insert(key);
      }
      client.awaited.clear();
      return put_byte(client.out, kWaitCanceled);
    case StoreRequest::set:
    case StoreRequest::compare_set:
    case StoreRequest::get:
    case StoreRequest::add:
    case StoreRequest::key_count:
    case StoreRequest::erase:
    case StoreRequest::append:
    case StoreRequest::multi_get:
    case StoreRequest::multi_set:
    case StoreRequest::queue_push:
    case StoreRequest::queue_pop:
    case StoreRequest::queue_length:
    case StoreRequest::list_keys:
      break;
  }
  answer_value(client, message);
  if (keys_.bytes() > kMostBytes) throw InputError("store: more than 1 GiB of values");
  wake_waiting();
}

void GhostStore::Server::answer_value(Client& client, const StoreMessage& message) {
  const std::string key = message.keys.empty() ? std::string() : message.keys[0];
  std::string value;
  switch (message.request) {
    case StoreRequest::set:
    case StoreRequest::multi_set:
      for (std::size_t n = 0; n < message.keys.size(); ++n) keys_.set(message.keys[n], message.values[n]);
      return;
    case StoreRequest::append:
      return keys_.append(key, message.values[0]);
    case StoreRequest::compare_set:
      return put_text(client.out, keys_.compare_set(key, message.values[0], message.values[1]));
    case StoreRequest::get:
      return put_text(client.out, keys_.get(key));
    case StoreRequest::multi_get:
      for (const std::string& each : message.keys) put_text(client.out, keys_.get(each));
      return;
    case StoreRequest::add:
      return put_number(client.out, keys_.add(key, message.number));
    case StoreRequest::key_count:
      return put_number(client.out, keys_.size());
    case StoreRequest::erase:
      return put_number(client.out, keys_.erase(key) ? 1 : 0);
    case StoreRequest::queue_push:
      return keys_.push(key, message.values[0]);
    case StoreRequest::queue_length:
      return put_number(client.out, keys_.length(key));
    case StoreRequest::queue_pop:
      put_number(client.out, keys_.length(key));
      if (keys_.pop(key, value)) put_text(client.out, value);
      return;
    case StoreRequest::list_keys: {
      const std::vector<std::string> names = keys_.names();
      put_number(client.out, static_cast<std::int64_t>(names.size()));
      for (const std::string& name : names) put_text(client.out, name);
      return;
    }
    case StoreRequest::validate:
    case StoreRequest::ping:
    case StoreRequest::check:
    case StoreRequest::wait:
    case StoreRequest::cancel_wait:
    case StoreRequest::barrier:
      break;
  }
}

// A check never invents a key: programs also check for keys they hope never to see, such as another rank's failure.
bool GhostStore::Server::are_there(const std::vector<std::string>& keys) {
  return std::ranges::all_of(keys, [&](const std::string& key) { return keys_.has(key); });
}

void GhostStore::Server::wait_for(Client& client, const std::vector<std::string>& keys) {
  client.awaited.clear();
  for (const std::string& key : keys) {
    if (!keys_.has_or_ghosts_set(key)) client.awaited.push_back(key);
  }
  if (client.awaited.empty()) put_byte(client.out, kStopWaiting);
}

void GhostStore::Server::wake_waiting() {
  for (Client& client : clients_) {
    if (client.awaited.empty()) continue;
    std::erase_if(client.awaited, [&](const std::string& key) { return keys_.has_or_ghosts_set(key); });
    if (client.awaited.empty()) put_byte(client.out, kStopWaiting);
  }
}

void GhostStore::Server::publish() {
  const std::lock_guard lock(mutex_);
  report_.answers = keys_.ghost_answers();
  report_.keys.assign(keys_.ghost_keys().begin(), keys_.ghost_keys().end());
  report_.never_set_keys.assign(never_set_.begin(), never_set_.end());
  report_.refused = refused_;
}

GhostStore::GhostStore(GhostWorld world)
    : server_(std::make_unique<Server>(world, port_.descriptor())), thread_([this] { server_->run(); }) {}

GhostStore::~GhostStore() {
  server_->stop();
  thread_.join();
}

GhostReport GhostStore::report() const { return server_->report(); }

}  // namespace vramfit
