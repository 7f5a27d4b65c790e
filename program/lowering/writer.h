// Writes a list of instructions while buffers are handed from owner to owner: the end of the last one writes the free.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "program/program.h"

namespace vramfit::program {

/// Labels of a program, each kept once.
class Labels {
 public:
  /// What somebody will read. Numbers alone tell what has one label from what has another, by a hash of 64 bits.
  enum class Kept { texts, numbers, nothing };

  explicit Labels(Kept kept = Kept::texts) : kept_(kept) {}
  bool have_texts() const { return kept_ == Kept::texts; }
  /// Of the text that the parts make together; -1 where nothing is kept.
  int number(std::initializer_list<std::string_view> parts) { return kept_ == Kept::nothing ? -1 : number_of(parts); }
  int number(std::string_view text) { return number({text}); }
  /// By number; empty where numbers alone are kept.
  std::vector<std::string> take() { return std::move(texts_); }

 private:
  int number_of(std::initializer_list<std::string_view> parts);

  Kept kept_;
  /// Where a text with this hash is, or could be put.
  std::size_t place_of(std::size_t hash, std::string_view text) const;
  void grow();

  /// A text's number, with its hash: others need not be looked at.
  struct Place {
    std::size_t hash = 0;
    int number = -1;  // none
  };
  std::string text_;
  std::vector<std::string> texts_;
  std::vector<Place> places_;  // a power of two of them, at most half of which have a text
};

class Writer;

/// A share in a buffer; copies share it. Empty for what is not allocated.
class Held {
 public:
  Held() = default;
  Held(Writer& writer, int buffer);
  Held(const Held& other) : Held() { *this = other; }
  Held(Held&& other) noexcept
      : writer_(std::exchange(other.writer_, nullptr)), buffer_(std::exchange(other.buffer_, -1)) {}
  Held& operator=(const Held& other);
  Held& operator=(Held&& other) noexcept {
    if (this == &other) return *this;
    reset();
    writer_ = std::exchange(other.writer_, nullptr);
    buffer_ = std::exchange(other.buffer_, -1);
    return *this;
  }
  ~Held() { reset(); }

  void reset() noexcept;
  explicit operator bool() const { return writer_ != nullptr; }
  /// In the writer's Code::buffers; -1 when empty.
  int buffer() const { return buffer_; }

 private:
  Writer* writer_ = nullptr;
  int buffer_ = -1;
};

class Writer {
 public:
  /// `calls`: false leaves out all but what is allocated, freed and called.
  explicit Writer(bool calls = true) : calls_(calls) {}

  /// A buffer that something else allocates (a block that is called), or a slot.
  Held declare(const Buffer& buffer) {
    code_.buffers.push_back(buffer);
    owners_.push_back(0);
    return {*this, static_cast<int>(code_.buffers.size()) - 1};
  }
  /// Nothing of zero bytes is allocated: the result is empty.
  Held allocate(const Buffer& buffer);
  void allocate(const Held& declared);
  /// An access to what is held at that time; `of` may be null or empty.
  struct Operand : Access {
    Operand(const Held* of, How does, std::int16_t with = -1, int seen_as = -1)
        : Access{of == nullptr ? -1 : of->buffer(), does, with, of == nullptr || !*of ? -1 : seen_as} {}
  };
  static Operand viewed(const Held& held, How how, int view) { return {&held, how, -1, view}; }
  using Operands = std::vector<Operand>;
  /// An empty list to be filled and handed over. There is one, which keeps its memory from use to use.
  Operands& operands() {
    operands_.clear();
    return operands_;
  }
  /// Operands as a function takes them: those of a list or of braces.
  class Listed : public std::span<const Operand> {
   public:
    // NOLINTNEXTLINE(google-explicit-constructor)
    Listed(const Operands& list) : span(list) {}
    // NOLINTNEXTLINE(google-explicit-constructor)
    Listed(std::initializer_list<Operand> list) : span(list.begin(), list.size()) {}
  };
  /// One kernel that reads and writes all of these buffers once. Here and below, accesses and work are filled in.
  /// Operands keep their places: one that isn't there has buffer -1.
  void run(const Run& run, Listed list);
  void run(const Run& run, Listed list, const Work& work) { this->run(run, list, std::span(&work, 1)); }
  void run(const Run& run, Listed list, std::span<const Work> work);
  /// Over all of the operands. The rest is filled in: bytes, where there are none, are those of the operands, and each
  /// rank's part is all of them.
  void start(Start start, Listed operands);
  template <typename What>
  What& write(const What& what) {
    constexpr bool is_left_out = kIsOneOf<What, Start, Record, Wait, HostRead, Mark>;
    if (is_left_out && !calls_) return std::get<What>(left_out_ = what);
    return std::get<What>(code_.instructions.emplace_back(what));
  }

  /// Room for about as many instructions, and for what they usually refer to.
  void reserve(std::size_t instructions) {
    code_.instructions.reserve(instructions);
    code_.accesses.reserve(instructions);
    code_.buffers.reserve(instructions / 2);
    owners_.reserve(instructions / 2);
    code_.work.reserve(instructions / 2);
    code_.bindings.reserve(instructions / 3 * 2);
  }

  int owners(int buffer) const { return owners_[static_cast<std::size_t>(buffer)]; }
  /// How often a buffer's last owner has let go of it so far.
  std::size_t times_let_go() const { return let_go_; }
  /// By buffer.
  const std::vector<int>& owners() const { return owners_; }
  /// Whether everything is held as it was when there were these owners: what has been made since is free again.
  bool is_held_as(std::span<const int> owners_before) const;
  /// While quiet, an owner's end writes nothing: a block that was called has freed the buffer, or nothing does.
  void be_quiet(bool quiet) { quiet_ = quiet; }
  /// Within a run, allocations and frees are the kernel's.
  void begin_inside();
  Range end_inside();

  Code& code() { return code_; }

 private:
  friend class Held;
  template <typename What, typename... Others>
  static constexpr bool kIsOneOf = (std::is_same_v<What, Others> || ...);

  void share(int buffer) { ++owners_[static_cast<std::size_t>(buffer)]; }
  void drop(int buffer) noexcept {
    if (--owners_[static_cast<std::size_t>(buffer)] > 0) return;
    ++let_go_;
    if (!quiet_) write_free(buffer);
  }
  void write_free(int buffer) noexcept;
  double bytes_of(int buffer) const;

  Code code_;
  std::vector<int> owners_;  // by buffer
  std::size_t let_go_ = 0;
  Operands operands_;
  bool calls_;
  Instruction left_out_;  // the last one that was
  bool quiet_ = false, inside_ = false;
  std::uint32_t inside_begin_ = 0;
};

inline Held::Held(Writer& writer, int buffer) : writer_(&writer), buffer_(buffer) { writer.share(buffer); }

inline Held& Held::operator=(const Held& other) {
  if (other.writer_ != nullptr) other.writer_->share(other.buffer_);
  reset();
  writer_ = other.writer_;
  buffer_ = other.buffer_;
  return *this;
}

inline void Held::reset() noexcept {
  if (writer_ != nullptr) writer_->drop(buffer_);
  writer_ = nullptr;
  buffer_ = -1;
}

}  // namespace vramfit::program
