#include "phantom/core/ptx.h"

#include <cctype>
#include <cstdlib>
#include <vector>

namespace vramfit::phantom {

namespace {

bool is_word(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_' || letter == '$' || letter == '.' ||
         letter == '%';
}

/// Words, and every other letter by itself; comments are skipped.
std::vector<std::string_view> tokens_of(std::string_view text) {
  std::vector<std::string_view> tokens;
  std::size_t at = 0;
  while (at < text.size()) {
    if (std::isspace(static_cast<unsigned char>(text[at])) != 0) {
      ++at;
    } else if (text.substr(at, 2) == "//") {
      at = std::min(text.find('\n', at), text.size());
    } else if (text.substr(at, 2) == "/*") {
      const std::size_t end = text.find("*/", at);
      at = end == std::string_view::npos ? text.size() : end + 2;
    } else {
      std::size_t end = at;
      while (end < text.size() && is_word(text[end])) ++end;
      if (end == at) ++end;
      tokens.push_back(text.substr(at, end - at));
      at = end;
    }
  }
  return tokens;
}

// The number at the end of .u64, .b8, .f32.
std::uint32_t type_bytes(std::string_view type) {
  if (type.size() < 3 || type[0] != '.' || std::string_view("busf").find(type[1]) == std::string_view::npos) return 0;
  const int bits = std::atoi(std::string(type.substr(2)).c_str());
  return bits >= 8 && bits <= 128 ? static_cast<std::uint32_t>(bits) / 8 : 0;
}

std::uint32_t number_of(std::string_view token) {
  return static_cast<std::uint32_t>(std::strtoul(std::string(token).c_str(), nullptr, 0));
}

// `.param .align 8 .b8 name[72]` or `.param .u64 .ptr .global .align 16 name`.
bool read_parameter(const std::vector<std::string_view>& tokens, std::uint32_t* end, KernelFacts& facts) {
  std::uint32_t element = 0, count = 1, alignment = 0;
  bool of_pointer = false;
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    if (tokens[i] == ".ptr") {
      of_pointer = true;
    } else if (tokens[i] == ".align" && i + 1 < tokens.size()) {
      if (!of_pointer) alignment = number_of(tokens[i + 1]);
    } else if (tokens[i] == "[" && i + 1 < tokens.size()) {
      count = number_of(tokens[i + 1]);
    } else if (element == 0) {
      element = type_bytes(tokens[i]);
    }
  }
  if (tokens.empty() || tokens[0] != ".param" || element == 0 || count == 0) return false;
  const std::uint32_t unit = std::max(alignment, element);
  const std::uint32_t offset = (*end + unit - 1) / unit * unit;
  facts.parameters.push_back({offset, element * count});
  *end = offset + element * count;
  return true;
}

}  // namespace

std::optional<std::map<std::string, KernelFacts, std::less<>>> read_ptx(std::string_view text) {
  const auto tokens = tokens_of(text);
  if (tokens.empty() || tokens.front() != ".version") return std::nullopt;
  std::map<std::string, KernelFacts, std::less<>> kernels;
  int capability = 0;
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    if (tokens[i] == ".target" && tokens[i + 1].starts_with("sm_")) {
      capability = static_cast<int>(number_of(tokens[i + 1].substr(3)));
    }
    if (tokens[i] != ".entry") continue;
    KernelFacts facts;
    facts.capability = capability;
    facts.parameters_known = true;
    const std::string name(tokens[++i]);
    std::uint32_t end = 0;
    std::vector<std::string_view> parameter;
    if (i + 1 < tokens.size() && tokens[i + 1] == "(") {
      for (i += 2; i < tokens.size(); ++i) {
        const bool closes = tokens[i] == ")";
        if (!closes && tokens[i] != ",") {
          parameter.push_back(tokens[i]);
          continue;
        }
        const bool none = parameter.empty() && closes && facts.parameters.empty();
        if (!none && !read_parameter(parameter, &end, facts)) facts.parameters_known = false;
        parameter.clear();
        if (closes) break;
      }
    }
    kernels.emplace(name, std::move(facts));
  }
  return kernels;
}

}  // namespace vramfit::phantom
