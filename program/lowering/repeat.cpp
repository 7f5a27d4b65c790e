#include "program/lowering/repeat.h"

#include <algorithm>
#include <variant>

namespace vramfit::program {

namespace {

/// A list grows by its elements from `first` on, each changed by `change`. Returns by how many.
template <typename T, typename Change>
std::uint32_t append(std::vector<T>& list, std::size_t first, const Change& change) {
  const std::size_t count = list.size() - first;
  list.resize(list.size() + count);
  T* const from = list.data() + first;
  for (std::size_t i = 0; i < count; ++i) {
    from[count + i] = from[i];
    change(from[count + i]);
  }
  return static_cast<std::uint32_t>(count);
}

}  // namespace

/// What is added to the numbers that an instruction names.
struct Repeat::Shifts {
  int first_buffer = 0, buffers = 0, first_token = 0, tokens = 0;
  std::uint32_t accesses = 0, inside = 0, bindings = 0;

  void buffer(int& number) const { number += number >= first_buffer ? buffers : 0; }
  void token(int& number) const { number += number >= first_token ? tokens : 0; }

  void shift(Allocate& what) const { buffer(what.buffer); }
  void shift(Free& what) const { buffer(what.buffer); }
  void shift(Keep& what) const { buffer(what.buffer); }
  void shift(HostRead& what) const { buffer(what.buffer); }
  void shift(Record& what) const { token(what.token); }
  void shift(Wait& what) const { token(what.token); }
  void shift(Call& what) const { what.bindings.first += bindings; }
  void shift(Mark& /*what*/) const {}
  void shift(Run& what) const {
    what.accesses.first += accesses;
    what.inside.first += inside;
  }
  void shift(Start& what) const {
    what.accesses.first += accesses;
    token(what.token);
  }
};

Repeat::Repeat(Writer& writer, int& tokens)
    : writer_(writer),
      tokens_(tokens),
      first_token_(tokens),
      instructions_(writer.code().instructions.size()),
      accesses_(writer.code().accesses.size()),
      inside_(writer.code().inside.size()),
      bindings_(writer.code().bindings.size()) {
  const auto buffers = static_cast<int>(writer.code().buffers.size());
  owners_.reserve(static_cast<std::size_t>(buffers));
  for (int buffer = 0; buffer < buffers; ++buffer) owners_.push_back(writer.owners(buffer));
}

bool Repeat::is_closed() const {
  const std::size_t buffers = writer_.code().buffers.size();
  for (std::size_t buffer = 0; buffer < buffers; ++buffer) {
    const int before = buffer < owners_.size() ? owners_[buffer] : 0;
    if (writer_.owners(static_cast<int>(buffer)) != before) return false;
  }
  return true;
}

void Repeat::write() {
  Code& code = writer_.code();
  const std::size_t buffers = code.buffers.size();
  Shifts shifts{.first_buffer = static_cast<int>(owners_.size()),
                .buffers = static_cast<int>(buffers - owners_.size()),
                .first_token = first_token_,
                .tokens = tokens_ - first_token_};
  writer_.be_quiet(true);  // nobody holds the new ones
  for (std::size_t buffer = owners_.size(); buffer < buffers; ++buffer) {
    const Buffer like = code.buffers[buffer];
    (void)writer_.declare(like);
  }
  writer_.be_quiet(false);
  tokens_ += shifts.tokens;
  shifts.accesses = append(code.accesses, accesses_, [&](Access& access) { shifts.buffer(access.buffer); });
  shifts.inside = append(code.inside, inside_, [&](Inside& step) { shifts.buffer(step.buffer); });
  shifts.bindings = append(code.bindings, bindings_, [&](int& buffer) { shifts.buffer(buffer); });
  append(code.instructions, instructions_,
         [&](Instruction& instruction) { std::visit([&](auto& what) { shifts.shift(what); }, instruction); });
}

}  // namespace vramfit::program
