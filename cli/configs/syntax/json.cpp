#include "cli/configs/syntax/json.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json/json_value.h"
#include "base/text/suggest.h"

namespace vramfit {
namespace {

/// Walks a text that is known to be JSON, value by value in the order of the parsed tree, to learn in which line each
/// begins and how it is written.
class Lines {
 public:
  explicit Lines(std::string_view text) : text_(text) {}

  ConfigNode node_of(const JsonValue& from) {
    ConfigNode node;
    skip_between();
    node.line = line_;
    switch (from.kind) {
      case JsonValue::Kind::object:
        node.kind = ConfigNode::Kind::map;
        node.keys = from.keys;
        take(1);
        for (const JsonValue& item : from.items) {
          skip_between();
          const int key_line = line_;
          take_text();
          node.items.push_back(node_of(item));
          node.items.back().line = key_line;
        }
        close();
        return node;
      case JsonValue::Kind::array:
        node.kind = ConfigNode::Kind::list;
        take(1);
        for (const JsonValue& item : from.items) node.items.push_back(node_of(item));
        close();
        return node;
      case JsonValue::Kind::text:
        node.kind = ConfigNode::Kind::text;
        node.text = from.text;
        take_text();
        return node;
      case JsonValue::Kind::null:
        break;
      case JsonValue::Kind::boolean:
        node.kind = ConfigNode::Kind::boolean;
        node.boolean = from.boolean;
        break;
      case JsonValue::Kind::integer:
        node.kind = ConfigNode::Kind::integer;
        node.integer = from.integer;
        node.real = from.real;
        break;
      case JsonValue::Kind::real:
        node.kind = ConfigNode::Kind::real;
        node.real = from.real;
        break;
    }
    node.text = take_word();
    return node;
  }

 private:
  void take(std::size_t count) {
    for (; count > 0 && at_ < text_.size(); --count, ++at_) line_ += text_[at_] == '\n' ? 1 : 0;
  }
  void skip_between() {
    while (at_ < text_.size() && std::string_view(" \t\r\n,:").find(text_[at_]) != std::string_view::npos) take(1);
  }
  void close() {
    skip_between();
    take(1);
  }
  void take_text() {
    take(1);
    while (at_ < text_.size() && text_[at_] != '"') take(text_[at_] == '\\' ? 2 : 1);
    take(1);
  }
  std::string take_word() {
    const std::size_t end = std::min(text_.find_first_of(" \t\r\n,]}", at_), text_.size());
    std::string word(text_.substr(at_, end - at_));
    at_ = end;
    return word;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

ConfigNode read_json(std::string_view text, const std::string& file) {
  const JsonValue value = parse_json(text, file, {.bytes = kMostConfigBytes, .depth = kMostConfigDepth});
  constexpr std::string_view kMark = "\xef\xbb\xbf";  // of the byte order, which the parser skips, too
  if (text.starts_with(kMark)) text.remove_prefix(kMark.size());
  ConfigNode node = Lines(text).node_of(value);
  if (node_count(node) > kMostConfigNodes) {
    throw InputError(fmt::format("{}: more than {} values", printable(file, 300), kMostConfigNodes));
  }
  return node;
}

}  // namespace vramfit
