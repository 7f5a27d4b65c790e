// JSON read defensively: sizes, depth and duplicate keys are checked, and every error names the file and the key.
// Includes no JSON library, so headers may include it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vramfit {

/// A parsed JSON value. Objects keep their members in the order of the text: keys[i] names items[i].
struct JsonValue {
  enum class Kind { null, boolean, integer, real, text, array, object } kind = Kind::null;
  bool boolean = false;
  std::int64_t integer = 0;
  double real = 0;  // also set for integers
  std::string text;
  std::vector<std::string> keys;
  std::vector<JsonValue> items;
};

/// The maximum size of a document; job and plan files are far smaller.
struct JsonLimits {
  std::size_t bytes = std::size_t{64} << 20;
  int depth = 64;
};

/// Throws InputError "FILE: ..." for text that isn't one JSON value, is beyond `limits`, repeats a key, or holds a
/// number outside a 64-bit integer's or a double's range.
JsonValue parse_json(std::string_view text, const std::string& file, const JsonLimits& limits = {});

/// Reads the members of one object strictly. Each getter throws InputError naming file and key ("plan.json:
/// job.mesh.shard: ...") if the key is missing, has another type or is out of range. `finish` throws, with a
/// suggestion, if the object has a key that was never asked for.
class JsonObject {
 public:
  /// `path` is the key of the object itself: "" for the document, "job.mesh" for a nested one. `value` must outlive
  /// this.
  JsonObject(const JsonValue& value, std::string file, std::string path = "");

  /// Whether the key is there and not null.
  bool has(std::string_view key);
  /// Whether the key is there, with null as its value.
  bool is_null(std::string_view key);
  /// Whether the key is there, with a string as its value.
  bool is_text(std::string_view key);
  std::string text(std::string_view key);
  bool boolean(std::string_view key);
  std::int64_t integer(std::string_view key, std::int64_t least, std::int64_t most);
  std::vector<std::int64_t> integers(std::string_view key, std::int64_t least, std::int64_t most);
  /// Finite, within [least, most].
  double real(std::string_view key, double least, double most);
  JsonObject object(std::string_view key);
  std::vector<std::string> texts(std::string_view key);
  /// null stands for NaN and infinities, which JSON lacks.
  std::vector<double> reals(std::string_view key);
  /// The elements of an array of objects, with paths like "ranks[2]".
  std::vector<JsonObject> objects(std::string_view key);
  /// Marks a key as known without reading it, for fields meant only for human readers.
  void skip(std::string_view key);
  /// Throws if the object has keys that were never asked for.
  void finish() const;

  /// "FILE: PATH.KEY: ", for the caller's own messages.
  std::string where(std::string_view key) const;
  [[noreturn]] void fail(std::string_view key, const std::string& message) const;

 private:
  const JsonValue& member(std::string_view key, JsonValue::Kind kind);
  const JsonValue* find(std::string_view key);

  const JsonValue* value_;
  std::string file_, path_;
  std::vector<std::string> known_;
};

}  // namespace vramfit
