#include "cli/rehearse/launchers/batch_script.h"

#include <sstream>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "cli/files.h"

namespace vramfit {
namespace {

constexpr std::string_view kInterpreter = "#!", kFlags = "#SBATCH";

/// Words of a line, with quotes as sbatch reads them; a comment ends it.
std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  std::string word;
  bool is_word = false;
  char quote = 0;
  for (const char c : line) {
    const bool is_space = c == ' ' || c == '\t' || c == '\r';
    if (quote != 0) {
      if (c == quote)
        quote = 0;
      else
        word += c;
    } else if (c == '"' || c == '\'') {
      quote = c;
      is_word = true;
    } else if (is_space) {
      if (is_word) words.push_back(std::exchange(word, ""));
      is_word = false;
    } else {
      if (c == '#' && !is_word) break;
      word += c;
      is_word = true;
    }
  }
  if (is_word) words.push_back(word);
  return words;
}

}  // namespace

BatchScript read_batch_script(const std::string& path) {
  std::istringstream lines(read_file(path));
  std::string line;
  if (!std::getline(lines, line) || !line.starts_with(kInterpreter)) {
    throw InputError(
        fmt::format("sbatch {}: its first line names no interpreter, such as #!/bin/bash", printable(path)));
  }
  BatchScript script;
  script.interpreter = words_of(std::string_view(line).substr(kInterpreter.size()));
  if (script.interpreter.empty()) throw InputError(fmt::format("sbatch {}: its first line is empty", printable(path)));
  while (std::getline(lines, line)) {
    const std::size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos) continue;
    if (line[first] != '#') break;
    if (!line.starts_with(kFlags)) continue;
    const std::vector<std::string> words = words_of(std::string_view(line).substr(kFlags.size()));
    if (words.empty() || !words[0].starts_with("-")) {
      throw InputError(
          fmt::format("sbatch {}: {}: not a flag that vramfit knows", printable(path), printable(line, 80)));
    }
    script.flags.insert(script.flags.end(), words.begin(), words.end());
  }
  return script;
}

std::string host_names(const std::string& list) {
  std::string names = list;
  for (char& c : names) {
    if (c == ',') c = '\n';
  }
  return names + "\n";
}

}  // namespace vramfit
