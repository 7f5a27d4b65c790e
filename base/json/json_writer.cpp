#include "base/json/json_writer.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/text/suggest.h"

namespace vramfit {

void JsonWriter::before_value() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (has_members_.empty()) return;
  if (has_members_.back()) out_ += form_ == JsonForm::one_line ? ", " : ",";
  has_members_.back() = true;
  new_line();
}

void JsonWriter::new_line() {
  if (form_ == JsonForm::one_line) return;
  out_ += '\n';
  out_.append(2 * has_members_.size(), ' ');
}

void JsonWriter::open(char bracket) {
  before_value();
  out_ += bracket;
  has_members_.push_back(false);
}

void JsonWriter::close(char bracket) {
  const bool had_members = has_members_.back();
  has_members_.pop_back();
  if (had_members) new_line();
  out_ += bracket;
}

void JsonWriter::quoted(std::string_view value) {
  out_ += '"';
  for (std::size_t i = 0; i < value.size(); ++i) {
    const char c = value[i];
    const auto byte = static_cast<unsigned char>(c);
    const auto next = i + 1 < value.size() ? static_cast<unsigned char>(value[i + 1]) : 0U;
    if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {  // C1 controls, which act on terminals like escapes
      out_ += fmt::format("\\u{:04x}", next);
      ++i;
    } else if (c == '"' || c == '\\') {
      out_ += '\\';
      out_ += c;
    } else if (c == '\n') {
      out_ += "\\n";
    } else if (byte < 0x20 || byte == 0x7F) {
      out_ += fmt::format("\\u{:04x}", byte);
    } else {
      out_ += c;
    }
  }
  out_ += '"';
}

JsonWriter& JsonWriter::begin_object() { return open('{'), *this; }
JsonWriter& JsonWriter::end_object() { return close('}'), *this; }
JsonWriter& JsonWriter::begin_array() { return open('['), *this; }
JsonWriter& JsonWriter::end_array() { return close(']'), *this; }

JsonWriter& JsonWriter::key(std::string_view name) {
  before_value();
  quoted(name);
  out_ += ": ";
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::text(std::string_view value) {
  before_value();
  quoted(replace_broken_utf8(value));
  return *this;
}

JsonWriter& JsonWriter::integer(std::int64_t value) {
  before_value();
  out_ += fmt::to_string(value);
  return *this;
}

JsonWriter& JsonWriter::real(double value) {
  before_value();
  out_ += std::isfinite(value) ? fmt::format("{}", value) : "null";
  return *this;
}

JsonWriter& JsonWriter::boolean(bool value) {
  before_value();
  out_ += value ? "true" : "false";
  return *this;
}

JsonWriter& JsonWriter::null() {
  before_value();
  out_ += "null";
  return *this;
}

JsonWriter& JsonWriter::member(std::string_view name, const std::vector<std::string>& values) {
  key(name).begin_array();
  for (const std::string& value : values) text(value);
  return end_array();
}

std::string JsonWriter::take() {
  out_ += '\n';
  return std::exchange(out_, {});
}

}  // namespace vramfit
