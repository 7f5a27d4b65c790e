// Writes Python's pickle format, protocol 2: dicts, lists, texts and numbers. Nothing here reads one.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace vramfit {

/// Values go directly to the stream, so a document may be larger than memory. Texts are written once and referred
/// to after that. Only opcodes that torch.cuda.memory_viz's own reader in JavaScript knows are used; it takes the
/// items of a list as arguments of one call, so they are appended in batches, as Python does.
class PickleWriter {
 public:
  explicit PickleWriter(std::ostream& out);

  PickleWriter& begin_dict();
  PickleWriter& end_dict();
  PickleWriter& begin_list();
  PickleWriter& end_list();
  /// The name of the next value; only inside a dict.
  PickleWriter& key(std::string_view name);

  PickleWriter& text(std::string_view value);  // UTF-8
  PickleWriter& integer(std::int64_t value);
  PickleWriter& boolean(bool value);
  PickleWriter& pair(std::int64_t first, std::int64_t second);  // a tuple

  PickleWriter& member(std::string_view name, std::string_view value) { return key(name).text(value); }
  PickleWriter& member(std::string_view name, const std::string& value) { return key(name).text(value); }
  PickleWriter& member(std::string_view name, const char* value) { return key(name).text(value); }
  PickleWriter& member(std::string_view name, std::int64_t value) { return key(name).integer(value); }
  PickleWriter& member(std::string_view name, int value) { return key(name).integer(value); }
  PickleWriter& member(std::string_view name, bool value) { return key(name).boolean(value); }

  /// Ends the document.
  void stop();

 private:
  struct Open {
    bool is_list = false;
    std::int64_t items = 0;  // values since the last mark; in a dict names count too
  };

  void before_value();
  void put(unsigned char byte) { out_.put(static_cast<char>(byte)); }
  void put_number(std::uint64_t value, int bytes);

  std::ostream& out_;
  std::vector<Open> open_;
  std::unordered_map<std::string, std::uint32_t> memo_;
};

}  // namespace vramfit
