#include "cli/configs/syntax/shell_words.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "cli/configs/syntax/tree.h"

namespace vramfit {
namespace {

class Splitter {
 public:
  Splitter(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  std::vector<std::vector<ShellWord>> split() {
    while (at_ < text_.size()) step(text_[at_]);
    end_command();
    return std::move(commands_);
  }

 private:
  void step(char c) {
    if (c == '\\') {
      escape();
    } else if (c == '\'' || c == '"') {
      quoted(c);
    } else if (c == ' ' || c == '\t' || c == '\r') {
      end_word();
      ++at_;
    } else if (c == '\n' || c == ';' || c == '|' || c == '&') {
      end_command();
      if (c == '\n') ++line_;
      ++at_;
    } else if (c == '>' || c == '<') {
      redirect();
    } else if (c == '#' && !in_word_) {
      while (at_ < text_.size() && text_[at_] != '\n') ++at_;
    } else {
      if (c == '$' || c == '`') word().is_plain = false;
      word().text += c;
      ++at_;
    }
  }

  /// "2>&1", "> log", "<<EOF": where output goes, and the number that stands before it.
  void redirect() {
    const bool has_number = in_word_ && words_.back().text.find_first_not_of("0123456789") == std::string::npos;
    if (has_number) words_.pop_back();
    end_word();
    constexpr std::string_view kSigns = "<>&|";
    while (at_ < text_.size() && kSigns.find(text_[at_]) != std::string_view::npos) ++at_;
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
    constexpr std::string_view kEnds = " \t\r\n;|&<>";
    while (at_ < text_.size() && kEnds.find(text_[at_]) == std::string_view::npos) ++at_;
  }

  /// A backslash before the end of a line joins it with the next.
  void escape() {
    if (at_ + 1 >= text_.size()) {
      ++at_;
      return;
    }
    const char next = text_[at_ + 1];
    at_ += 2;
    if (next == '\r' && at_ < text_.size() && text_[at_] == '\n') ++at_;
    if (next == '\n' || next == '\r') {
      ++line_;
    } else {
      word().text += next;
    }
  }

  void quoted(char quote) {
    const int begun = line_;
    ShellWord& current = word();
    for (++at_; at_ < text_.size() && text_[at_] != quote; ++at_) {
      char c = text_[at_];
      if (quote == '"' && c == '\\' && at_ + 1 < text_.size()) c = text_[++at_];
      if (quote == '"' && (c == '$' || c == '`')) current.is_plain = false;
      if (c == '\n') ++line_;
      current.text += c;
    }
    if (at_ >= text_.size()) throw InputError(place(file_, begun) + "a quote is not closed");
    ++at_;
  }

  ShellWord& word() {
    if (!in_word_) {
      in_word_ = true;
      words_.push_back({.text = {}, .line = line_});
      if (++count_ > kMostConfigNodes) {
        throw InputError(fmt::format("{}: more than {} words", printable(file_, 300), kMostConfigNodes));
      }
    }
    return words_.back();
  }
  void end_word() { in_word_ = false; }
  void end_command() {
    end_word();
    if (!words_.empty()) commands_.push_back(std::move(words_));
    words_.clear();
  }

  std::string_view text_;
  std::string file_;
  std::size_t at_ = 0, count_ = 0;
  int line_ = 1;
  bool in_word_ = false;
  std::vector<ShellWord> words_;
  std::vector<std::vector<ShellWord>> commands_;
};

}  // namespace

std::vector<std::vector<ShellWord>> shell_commands(std::string_view text, const std::string& file) {
  if (text.size() > kMostConfigBytes) {
    throw InputError(fmt::format("{}: {} bytes are more than the {} of a configuration", printable(file, 300),
                                 text.size(), kMostConfigBytes));
  }
  return Splitter(text, file).split();
}

}  // namespace vramfit
