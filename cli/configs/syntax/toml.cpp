#include "cli/configs/syntax/toml.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"

// The parser of toml++ 3.3 asserts what a file can break ("[[[" reaches its parse_key), and without assertions it tells
// the compiler to rely on it. Here each is a check that ends the parse, in every build.
namespace vramfit {
struct BrokenAssumption : std::logic_error {
  using std::logic_error::logic_error;
};
constexpr void check_assumption(bool holds) {
  if (!holds) throw BrokenAssumption("the parser of TOML relies on what this file breaks");
}
}  // namespace vramfit
#undef NDEBUG
#define TOML_ASSERT(...) vramfit::check_assumption(static_cast<bool>(__VA_ARGS__))
#define TOML_MAX_NESTED_VALUES 32  // NOLINT(modernize-macro-to-enum): the library's own setting
#define TOML_HEADER_ONLY 1
#define TOML_UNRELEASED_FEATURES 0
#include <toml++/toml.h>

namespace vramfit {
namespace {

using Kind = ConfigNode::Kind;

// A dotted key makes a table for each dot, and the library frees tables recursively.
constexpr std::ptrdiff_t kMostDots = 64;

void check_lines(std::string_view text, const std::string& file) {
  int line = 1;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (std::ranges::count(text.substr(0, end), '.') > kMostDots) {
      throw InputError(fmt::format("{}more than {} dots in a line", place(file, line), kMostDots));
    }
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line;
  }
}

class Converter {
 public:
  explicit Converter(const std::string& file) : file_(file) {}

  ConfigNode node_of(const toml::node& from, int depth) {
    ConfigNode node;
    node.line = static_cast<int>(from.source().begin.line);
    if (depth > kMostConfigDepth) fail(node.line, fmt::format("nested deeper than {} levels", kMostConfigDepth));
    if (++nodes_ > kMostConfigNodes) fail(node.line, fmt::format("more than {} values", kMostConfigNodes));
    if (const toml::table* table = from.as_table()) {
      node.kind = Kind::map;
      for (const auto& [key, value] : *table) {
        node.keys.emplace_back(key.str());
        node.items.push_back(node_of(value, depth + 1));
      }
    } else if (const toml::array* array = from.as_array()) {
      node.kind = Kind::list;
      for (const toml::node& item : *array) node.items.push_back(node_of(item, depth + 1));
    } else {
      set_scalar(node, from);
    }
    return node;
  }

 private:
  [[noreturn]] void fail(int line, const std::string& what) const { throw InputError(place(file_, line) + what); }

  static void set_scalar(ConfigNode& node, const toml::node& from) {
    if (const auto* text = from.as_string()) {
      node.kind = Kind::text;
      node.text = text->get();
    } else if (const auto* boolean = from.as_boolean()) {
      node.kind = Kind::boolean;
      node.boolean = boolean->get();
      node.text = node.boolean ? "true" : "false";
    } else if (const auto* integer = from.as_integer()) {
      node.kind = Kind::integer;
      node.integer = integer->get();
      node.real = static_cast<double>(node.integer);
      node.text = fmt::to_string(node.integer);
    } else if (const auto* real = from.as_floating_point()) {
      node.kind = Kind::real;
      node.real = real->get();
      node.text = fmt::to_string(node.real);
    } else {  // dates and times, which no configuration needs
      node.kind = Kind::text;
      node.text = "a date or a time";
    }
  }

  std::string file_;
  std::size_t nodes_ = 0;
};

}  // namespace

ConfigNode read_toml(std::string_view text, const std::string& file) {
  if (text.size() > kMostConfigBytes) {
    throw InputError(fmt::format("{}: {} bytes are more than the {} of a configuration", printable(file, 300),
                                 text.size(), kMostConfigBytes));
  }
  check_lines(text, file);
  try {
    const toml::table table = toml::parse(text);
    return Converter(file).node_of(table, 0);
  } catch (const toml::parse_error& error) {
    throw InputError(fmt::format("{}not valid TOML: {}", place(file, static_cast<int>(error.source().begin.line)),
                                 printable(error.description())));
  } catch (const BrokenAssumption&) {
    throw InputError(
        fmt::format("{}: not valid TOML (a key or table's name that can't be read)", printable(file, 300)));
  }
}

}  // namespace vramfit
