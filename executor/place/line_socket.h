// Lines of text over a connection between ranks.
#pragma once

#include <string>
#include <vector>

namespace vramfit {

/// A connected socket. A peer whose machine is gone is noticed within 20 seconds (TCP keepalive).
class LineSocket {
 public:
  explicit LineSocket(int descriptor);
  ~LineSocket();
  LineSocket(LineSocket&& other) noexcept;
  LineSocket& operator=(LineSocket&& other) noexcept;
  LineSocket(const LineSocket&) = delete;
  LineSocket& operator=(const LineSocket&) = delete;

  int descriptor() const { return descriptor_; }
  /// Sends it with a newline; false when the peer is gone or takes nothing for a second.
  bool send(const std::string& line) const;
  /// Complete lines that have come since; false in `open` when the peer has closed, or sends a line beyond 4096 bytes.
  std::vector<std::string> read_lines(bool& open);

 private:
  int descriptor_ = -1;
  std::string partial_;
};

/// Throws FaultError when nobody accepts there within `seconds`.
LineSocket connect_to(const std::string& host, int port, int seconds);

/// The port that a listening socket has.
int port_of(int descriptor);

}  // namespace vramfit
