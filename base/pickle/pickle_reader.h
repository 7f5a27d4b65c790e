// Reads the part of Python's pickle format that holds plain values. Nothing is unpickled: a document that asks for
// anything else, an object or a call, is refused by the name of its opcode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vramfit {

enum class PickleKind : std::uint8_t { none, boolean, integer, real, text, list, tuple, dict };

/// "a list", for messages.
std::string_view pickle_kind_text(PickleKind kind);

/// Limits of what one document may hold. Values are counted as they are made; references to one that is there already
/// make none.
struct PickleLimits {
  std::size_t values = std::size_t{1} << 25;
  std::size_t references = std::size_t{1} << 27;  // items of all containers
  std::size_t marks = 100;                        // containers that are filled at once
};

class PickleItem;

/// A document of protocol 2 to 5: None, True, False, integers of 64 bits, floats, texts, lists, tuples and dicts.
/// Values may refer to one another, in circles too: whoever walks them bounds the walk.
class PickleDocument {
 public:
  /// `path` is named in errors. Throws InputError that says at which byte what was wrong.
  PickleDocument(std::string bytes, const std::string& path, const PickleLimits& limits = {});

  PickleItem root() const;

 private:
  friend class PickleItem;
  friend class PickleMachine;

  struct Value {
    PickleKind kind = PickleKind::none;
    std::uint32_t size = 0;  // of a text
    std::int64_t bits = 0;   // the number, a float's bits, where a text begins, or which container; -1: an empty one
  };

  std::string bytes_;
  std::vector<Value> values_;
  std::vector<std::vector<std::uint32_t>> containers_;  // of a dict: key, value, key, value
  std::uint32_t root_ = 0;
};

/// A value of a document, which must outlive it.
class PickleItem {
 public:
  PickleItem(const PickleDocument& document, std::uint32_t id) : document_(&document), id_(id) {}

  PickleKind kind() const { return value().kind; }
  /// Equal for references to the same value.
  std::uint32_t id() const { return id_; }

  std::int64_t integer() const { return value().bits; }  // of an integer or a boolean
  double real() const;
  std::string_view text() const;
  /// Items of a list or tuple, pairs of a dict.
  std::size_t size() const;
  PickleItem item(std::size_t i) const;
  PickleItem key(std::size_t i) const { return child(2 * i); }
  PickleItem mapped(std::size_t i) const { return child(2 * i + 1); }

 private:
  const PickleDocument::Value& value() const { return document_->values_[id_]; }
  PickleItem child(std::size_t at) const;

  const PickleDocument* document_;
  std::uint32_t id_;
};

}  // namespace vramfit
