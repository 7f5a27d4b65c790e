// A web server on loopback that answers as a test says, also badly.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace vramfit::testing {

struct WebRequest {
  std::string path;  // with the query
  std::string text;  // the whole, as received
};

struct WebReply {
  int status = 200;
  std::vector<std::string> headers;  // "Location: /x"
  std::string body;
  std::size_t missing_bytes = 0;  // sent fewer than Content-Length says
  bool stall = false;             // nothing after the headers until the server ends
};

/// Serves one connection after the other on a port of its own until it is destroyed.
class HttpServer {
 public:
  using Handler = std::function<WebReply(const WebRequest&)>;
  explicit HttpServer(Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  HttpServer(HttpServer&&) = delete;
  HttpServer& operator=(HttpServer&&) = delete;

  std::string address() const;  // "http://127.0.0.1:PORT"
  std::vector<WebRequest> requests() const;

 private:
  void serve();
  void answer(int connection);

  Handler handler_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> ending_{false};
  mutable std::mutex mutex_;
  std::vector<WebRequest> requests_;
  std::jthread thread_;  // last: it ends before what it uses
};

/// Whether any request's text holds `part`.
bool any_holds(const std::vector<WebRequest>& requests, const std::string& part);

/// The answer to a ranged request, as a server that knows ranges gives it.
WebReply ranged(const WebRequest& request, const std::string& whole);

}  // namespace vramfit::testing
