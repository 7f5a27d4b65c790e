#include "executor/checkpoint/mask_digest.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "base/error.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

using testing::safetensors_bytes;
using testing::TemporaryDirectory;
using testing::TensorToStore;

const TensorToStore kFirst{"a", "U8", "[2, 2]", std::string("\1\0\0\1", 4)};

/// Longer than what is read at a time.
TensorToStore long_mask() { return {"b", "U8", "[2097155]", std::string(2097155, '\1')}; }

std::uint32_t digest_of(const std::vector<TensorToStore>& masks) {
  const TemporaryDirectory directory;
  return mask_digest(directory.write("mask.safetensors", safetensors_bytes(masks)));
}

TEST_CASE("the same masks have the same digest wherever they lie, in any order, in one file or several") {
  const TemporaryDirectory directory;
  const std::uint32_t whole = digest_of({kFirst, long_mask()});
  CHECK(digest_of({kFirst, long_mask()}) == whole);
  CHECK(digest_of({long_mask(), kFirst}) == whole);
  const TensorToStore as_bool{kFirst.name, "BOOL", kFirst.shape, kFirst.data};
  CHECK(digest_of({as_bool, long_mask()}) == whole);
  directory.write("one.safetensors", safetensors_bytes({long_mask()}));
  directory.write("two.safetensors", safetensors_bytes({kFirst}));
  const std::string index = directory.write("model.safetensors.index.json",
                                            R"({"weight_map":{"a":"two.safetensors","b":"one.safetensors"}})");
  CHECK(mask_digest(index) == whole);
}

TEST_CASE("another element, name, shape or number of masks is another digest") {
  const std::uint32_t whole = digest_of({kFirst, long_mask()});
  for (const std::size_t element : {std::size_t{0}, std::size_t{1} << 20, std::size_t{2097154}}) {
    TensorToStore changed = long_mask();
    changed.data[element] = '\0';
    CHECK(digest_of({kFirst, changed}) != whole);
  }
  const TensorToStore renamed{"c", kFirst.dtype, kFirst.shape, kFirst.data};
  const TensorToStore reshaped{kFirst.name, kFirst.dtype, "[4]", kFirst.data};
  CHECK(digest_of({renamed, long_mask()}) != whole);
  CHECK(digest_of({reshaped, long_mask()}) != whole);
  CHECK(digest_of({long_mask()}) != whole);
  CHECK_THROWS_AS(mask_digest("/nowhere/mask.safetensors"), ModelError);
}

}  // namespace
}  // namespace vramfit
