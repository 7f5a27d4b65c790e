// Writes a list of instructions while buffers are handed from owner to owner: the end of the last one writes the free.
#pragma once

#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "program/program.h"

namespace vramfit::program {

/// Labels of a program, each kept once.
class Labels {
 public:
  int number(const std::string& text);
  std::vector<std::string> take() { return std::move(texts_); }

 private:
  std::vector<std::string> texts_;
  std::unordered_map<std::string, int> numbers_;
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
  Held& operator=(Held&& other) noexcept;
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
  /// A buffer that something else allocates (a block that is called), or a slot.
  Held declare(const Buffer& buffer);
  /// Nothing of zero bytes is allocated: the result is empty.
  Held allocate(const Buffer& buffer);
  void allocate(const Held& declared);
  using Operands = std::vector<std::pair<const Held*, How>>;
  /// Operands keep their places: one that isn't there has buffer -1.
  Range accesses(const Operands& list);
  Range work(std::span<const Work> list);
  /// One kernel that reads and writes all of these once. Here and below, accesses and work are filled in.
  void run(const Run& run, const Operands& list);
  void run(const Run& run, const Operands& list, const Work& work) { this->run(run, list, std::span(&work, 1)); }
  void run(Run run, const Operands& list, std::span<const Work> work);
  /// Over all of the operands. The rest is filled in.
  void start(Start start, const Operands& operands);
  void write(Instruction instruction) { code_.instructions.push_back(instruction); }

  int owners(int buffer) const { return owners_[static_cast<std::size_t>(buffer)]; }
  /// While quiet, an owner's end writes nothing: a block that was called has freed the buffer, or nothing does.
  void be_quiet(bool quiet) { quiet_ = quiet; }
  /// Within a run, allocations and frees are the kernel's.
  void begin_inside();
  Range end_inside();

  Code& code() { return code_; }

 private:
  friend class Held;
  void share(int buffer) { ++owners_[static_cast<std::size_t>(buffer)]; }
  void drop(int buffer) noexcept;
  double bytes_of(int buffer) const;

  Code code_;
  std::vector<int> owners_;  // by buffer
  bool quiet_ = false, inside_ = false;
  std::uint32_t inside_begin_ = 0;
};

}  // namespace vramfit::program
