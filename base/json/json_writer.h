// Writes JSON in order, indented or on one line, without a DOM. Keys keep the order of the calls, so files diff well.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/text/units.h"

namespace vramfit {

enum class JsonForm : std::uint8_t { indented, one_line };

class JsonWriter {
 public:
  explicit JsonWriter(JsonForm form = JsonForm::indented) : form_(form) {}
  JsonWriter& begin_object();
  JsonWriter& end_object();
  JsonWriter& begin_array();
  JsonWriter& end_array();
  /// The name of the next value; only inside an object.
  JsonWriter& key(std::string_view name);

  JsonWriter& text(std::string_view value);
  JsonWriter& integer(std::int64_t value);
  /// Shortest decimal form that reads back to the same double; null for infinities and NaN, which JSON lacks.
  JsonWriter& real(double value);
  JsonWriter& boolean(bool value);
  JsonWriter& null();

  JsonWriter& member(std::string_view name, std::string_view value) { return key(name).text(value); }
  JsonWriter& member(std::string_view name, const std::string& value) { return key(name).text(value); }
  JsonWriter& member(std::string_view name, const char* value) { return key(name).text(value); }
  JsonWriter& member(std::string_view name, std::int64_t value) { return key(name).integer(value); }
  JsonWriter& member(std::string_view name, int value) { return key(name).integer(value); }
  JsonWriter& member(std::string_view name, double value) { return key(name).real(value); }
  JsonWriter& member(std::string_view name, bool value) { return key(name).boolean(value); }
  JsonWriter& member(std::string_view name, Bytes value) { return key(name).integer(value.n); }
  JsonWriter& member(std::string_view name, const std::vector<std::string>& values);
  /// null for none.
  template <typename T>
  JsonWriter& member(std::string_view name, const std::optional<T>& value) {
    return value ? member(name, *value) : key(name).null();
  }

  /// The document, ending in a newline.
  std::string take();

 private:
  void before_value();
  void new_line();
  void open(char bracket);
  void close(char bracket);
  void quoted(std::string_view value);

  JsonForm form_;
  std::string out_;
  std::vector<bool> has_members_;
  bool after_key_ = false;
};

}  // namespace vramfit
