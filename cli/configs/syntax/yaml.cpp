#include "cli/configs/syntax/yaml.h"

#include <yaml.h>

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"

namespace vramfit {
namespace {

using Kind = ConfigNode::Kind;

struct YamlEvent {
  yaml_event_t it{};
  YamlEvent() = default;
  ~YamlEvent() { yaml_event_delete(&it); }
  YamlEvent(const YamlEvent&) = delete;
  YamlEvent& operator=(const YamlEvent&) = delete;
  YamlEvent(YamlEvent&&) = delete;
  YamlEvent& operator=(YamlEvent&&) = delete;
  int line() const { return static_cast<int>(it.start_mark.line) + 1; }
};

std::string text_of(const yaml_char_t* text) {
  return text == nullptr ? "" : std::string(reinterpret_cast<const char*>(text));
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& file) : file_(file) {
    if (yaml_parser_initialize(&parser_) == 0) throw std::bad_alloc();
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  }
  ~Reader() { yaml_parser_delete(&parser_); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  Reader(Reader&&) = delete;
  Reader& operator=(Reader&&) = delete;

  ConfigNode read() {
    ConfigNode root;
    bool has_document = false;
    while (true) {
      YamlEvent event;
      next(event);
      if (event.it.type == YAML_STREAM_END_EVENT) return root;
      if (event.it.type != YAML_DOCUMENT_START_EVENT) continue;
      if (has_document) fail(event.line(), "a second document begins; a configuration is one");
      has_document = true;
      YamlEvent first;
      next(first);
      root = node_of(first, 0);
    }
  }

 private:
  [[noreturn]] void fail(int line, const std::string& what) const { throw InputError(place(file_, line) + what); }

  void next(YamlEvent& event) {
    if (yaml_parser_parse(&parser_, &event.it) != 0) return;
    if (parser_.error == YAML_MEMORY_ERROR) throw std::bad_alloc();
    const std::string problem = parser_.problem == nullptr ? "it can't be read" : parser_.problem;
    const int line = static_cast<int>(std::max(parser_.problem_mark.line, parser_.context_mark.line)) + 1;
    fail(line, "not valid YAML: " + printable(problem));
  }

  void count(std::size_t nodes, int line) {
    nodes_ += nodes;
    if (nodes_ > kMostConfigNodes) fail(line, fmt::format("more than {} values, aliases included", kMostConfigNodes));
  }

  ConfigNode node_of(const YamlEvent& event, int depth) {
    if (depth > kMostConfigDepth) fail(event.line(), fmt::format("nested deeper than {} levels", kMostConfigDepth));
    std::string anchor;
    ConfigNode node;
    if (event.it.type == YAML_ALIAS_EVENT) return alias(event);
    count(1, event.line());
    if (event.it.type == YAML_SCALAR_EVENT) {
      anchor = text_of(event.it.data.scalar.anchor);
      node = scalar(event);
    } else if (event.it.type == YAML_SEQUENCE_START_EVENT) {
      anchor = text_of(event.it.data.sequence_start.anchor);
      check_tag(text_of(event.it.data.sequence_start.tag), "seq", event.line());
      node = list(event.line(), depth);
    } else {
      anchor = text_of(event.it.data.mapping_start.anchor);
      check_tag(text_of(event.it.data.mapping_start.tag), "map", event.line());
      node = map(event.line(), depth);
    }
    if (!anchor.empty()) {
      count(node_count(node), node.line);
      anchors_[anchor] = node;
    }
    return node;
  }

  ConfigNode alias(const YamlEvent& event) {
    const std::string name = text_of(event.it.data.alias.anchor);
    const auto found = anchors_.find(name);
    if (found == anchors_.end()) {
      fail(event.line(), fmt::format("alias \"{}\" has no anchor before it", printable(name)));
    }
    count(node_count(found->second), event.line());
    ConfigNode node = found->second;
    node.line = event.line();
    return node;
  }

  void check_tag(const std::string& tag, std::string_view usual, int line) const {
    if (tag.empty() || tag == "!" || tag == fmt::format("{}{}", kStandard, usual)) return;
    fail(line, fmt::format("tag \"{}\" is not read", printable(tag)));
  }

  ConfigNode scalar(const YamlEvent& event) const {
    const auto& data = event.it.data.scalar;
    const std::string text(reinterpret_cast<const char*>(data.value), data.length);
    const std::string tag = text_of(data.tag);
    if (tag.empty() && data.style == YAML_PLAIN_SCALAR_STYLE) return plain_yaml_scalar(text, event.line());
    if (tag == "!" || tag.empty() || tag == fmt::format("{}str", kStandard)) {
      ConfigNode node;
      node.kind = Kind::text;
      node.text = text;
      node.line = event.line();
      return node;
    }
    for (const std::string_view known : {"int", "float", "bool", "null"}) {
      if (tag == fmt::format("{}{}", kStandard, known)) return plain_yaml_scalar(text, event.line());
    }
    fail(event.line(), fmt::format("tag \"{}\" is not read", printable(tag)));
  }

  ConfigNode list(int line, int depth) {
    ConfigNode node;
    node.kind = Kind::list;
    node.line = line;
    while (true) {
      YamlEvent event;
      next(event);
      if (event.it.type == YAML_SEQUENCE_END_EVENT) return node;
      node.items.push_back(node_of(event, depth + 1));
    }
  }

  ConfigNode map(int line, int depth) {
    ConfigNode node, merged;
    node.kind = Kind::map;
    node.line = line;
    std::map<std::string, std::size_t> places;
    while (true) {
      YamlEvent event;
      next(event);
      if (event.it.type == YAML_MAPPING_END_EVENT) break;
      const int key_line = event.line();
      const ConfigNode key = node_of(event, depth + 1);
      if (!key.is_scalar()) fail(key_line, "a key is a list or a map");
      const bool is_merge = key.text == "<<" && event.it.type == YAML_SCALAR_EVENT &&
                            event.it.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
      YamlEvent value;
      next(value);
      ConfigNode item = node_of(value, depth + 1);
      item.line = key_line;
      if (is_merge) {
        merge(merged, item, key_line);
      } else if (const auto [found, is_new] = places.emplace(key.text, node.items.size()); is_new) {
        node.keys.push_back(key.text);
        node.items.push_back(std::move(item));
      } else {
        node.items[found->second] = std::move(item);
      }
    }
    for (std::size_t i = 0; i < merged.keys.size(); ++i) {
      if (!places.emplace(merged.keys[i], node.items.size()).second) continue;
      node.keys.push_back(merged.keys[i]);
      node.items.push_back(merged.items[i]);
    }
    return node;
  }

  /// Of several maps the first that has a key decides.
  void merge(ConfigNode& merged, const ConfigNode& from, int line) const {
    if (from.is_list()) {
      for (const ConfigNode& item : from.items) merge(merged, item, line);
      return;
    }
    if (!from.is_map()) fail(line, "\"<<\" takes a map, or a list of maps");
    for (std::size_t i = 0; i < from.keys.size(); ++i) {
      if (find_in(merged, from.keys[i]) == nullptr) put(merged, from.keys[i], from.items[i]);
    }
  }

  static constexpr std::string_view kStandard = "tag:yaml.org,2002:";

  std::string file_;
  yaml_parser_t parser_{};
  std::map<std::string, ConfigNode> anchors_;
  std::size_t nodes_ = 0;
};

}  // namespace

ConfigNode read_yaml(std::string_view text, const std::string& file) {
  if (text.size() > kMostConfigBytes) {
    throw InputError(fmt::format("{}: {} bytes are more than the {} of a configuration", printable(file, 300),
                                 text.size(), kMostConfigBytes));
  }
  return Reader(text, file).read();
}

}  // namespace vramfit
