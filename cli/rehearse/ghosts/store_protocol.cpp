#include "cli/rehearse/ghosts/store_protocol.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error.h"

namespace vramfit {

namespace {

constexpr std::uint64_t kLongestKey = 8 << 10, kLongestValue = 64 << 20, kMostKeys = 128 << 10;

struct Incomplete {};

// Throws Incomplete at the end of what has come.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T number() {
    T value{};
    const std::string_view raw = take(sizeof value);
    std::memcpy(&value, raw.data(), sizeof value);
    return value;
  }
  std::string key() { return text(kLongestKey, "key"); }
  std::string value() { return text(kLongestValue, "value"); }
  std::uint64_t count() {
    const auto count = number<std::uint64_t>();
    if (count > kMostKeys) throw InputError(fmt::format("store: a request for {} keys", count));
    return count;
  }
  std::size_t taken() const { return at_; }

 private:
  std::string_view take(std::size_t count) {
    if (bytes_.size() - at_ < count) throw Incomplete{};
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }
  std::string text(std::uint64_t longest, const char* what) {
    const auto length = number<std::uint64_t>();
    if (length > longest) throw InputError(fmt::format("store: a {} of {} bytes", what, length));
    return std::string(take(static_cast<std::size_t>(length)));
  }

  std::string_view bytes_;
  std::size_t at_ = 0;
};

void read_body(Reader& reader, StoreMessage& message) {
  switch (message.request) {
    case StoreRequest::validate:
    case StoreRequest::ping:
      message.number = reader.number<std::uint32_t>();
      return;
    case StoreRequest::get:
    case StoreRequest::erase:
    case StoreRequest::queue_pop:
    case StoreRequest::queue_length:
      message.keys = {reader.key()};
      return;
    case StoreRequest::set:
    case StoreRequest::append:
    case StoreRequest::queue_push:
      message.keys = {reader.key()};
      message.values = {reader.value()};
      return;
    case StoreRequest::compare_set:
      message.keys = {reader.key()};
      message.values = {reader.value()};
      message.values.push_back(reader.value());
      return;
    case StoreRequest::add:
    case StoreRequest::barrier:
      message.keys = {reader.key()};
      message.number = reader.number<std::int64_t>();
      return;
    case StoreRequest::check:
    case StoreRequest::wait:
    case StoreRequest::multi_get:
      for (auto left = reader.count(); left > 0; --left) message.keys.push_back(reader.key());
      return;
    case StoreRequest::multi_set:
      for (auto left = reader.count(); left > 0; --left) {
        message.keys.push_back(reader.key());
        message.values.push_back(reader.value());
      }
      return;
    case StoreRequest::key_count:
    case StoreRequest::cancel_wait:
    case StoreRequest::list_keys:
      return;
  }
  throw InputError(fmt::format("store: unknown request {}", static_cast<int>(message.request)));
}

template <typename T>
void put_raw(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

std::optional<StoreMessage> parse_store_message(std::string_view bytes, std::size_t& taken) {
  taken = 0;
  try {
    Reader reader(bytes);
    StoreMessage message;
    message.request = static_cast<StoreRequest>(reader.number<std::uint8_t>());
    read_body(reader, message);
    taken = reader.taken();
    return message;
  } catch (const Incomplete&) {
    return std::nullopt;
  }
}

void put_byte(std::string& out, std::uint8_t value) { put_raw(out, value); }
void put_number(std::string& out, std::int64_t value) { put_raw(out, value); }
void put_nonce(std::string& out, std::int64_t value) { put_raw(out, static_cast<std::uint32_t>(value)); }

void put_text(std::string& out, std::string_view text) {
  put_raw(out, static_cast<std::uint64_t>(text.size()));
  out += text;
}

}  // namespace vramfit
