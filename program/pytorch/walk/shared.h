// Shares in an object that one thread alone uses. std::shared_ptr counts them with atomic operations once its process
// has begun a second thread, and a walk copies and ends hundreds of thousands of shares.
#pragma once

#include <cstddef>
#include <utility>

namespace vramfit::eager {

/// The object ends with the last of its shares. `T` may be incomplete, except where an object is made or looked at.
template <typename T>
class Shared {
 public:
  Shared() = default;
  Shared(std::nullptr_t) {}  // NOLINT(google-explicit-constructor): as pointers are
  Shared(const Shared& other) noexcept : counted_(other.counted_) {
    if (counted_ != nullptr) ++counted_->owners;
  }
  Shared(Shared&& other) noexcept : counted_(std::exchange(other.counted_, nullptr)) {}
  Shared& operator=(const Shared& other) noexcept {
    Counted* const counted = other.counted_;  // of this one as well, if it is assigned to itself
    if (counted != nullptr) ++counted->owners;
    reset();
    counted_ = counted;
    return *this;
  }
  Shared& operator=(Shared&& other) noexcept {
    Counted* const counted = std::exchange(other.counted_, nullptr);  // first: `other` may be part of what ends here
    reset();
    counted_ = counted;
    return *this;
  }
  ~Shared() { reset(); }

  static Shared make(T&& value) {
    Shared made;
    made.counted_ = new Value(std::move(value));
    return made;
  }
  void reset() noexcept {
    Counted* const counted = std::exchange(counted_, nullptr);
    if (counted != nullptr && --counted->owners == 0) delete counted;
  }
  T* get() const { return counted_ == nullptr ? nullptr : &static_cast<Value*>(counted_)->value; }
  T* operator->() const { return get(); }
  T& operator*() const { return *get(); }
  explicit operator bool() const { return counted_ != nullptr; }
  bool operator==(std::nullptr_t) const { return counted_ == nullptr; }

 private:
  struct Counted {
    Counted() = default;
    Counted(const Counted&) = delete;
    Counted(Counted&&) = delete;
    Counted& operator=(const Counted&) = delete;
    Counted& operator=(Counted&&) = delete;
    virtual ~Counted() = default;
    int owners = 1;
  };
  struct Value final : Counted {
    explicit Value(T&& of) : value(std::move(of)) {}
    T value;
  };

  Counted* counted_ = nullptr;
};

}  // namespace vramfit::eager
