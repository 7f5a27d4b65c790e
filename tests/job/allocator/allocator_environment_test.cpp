#include "job/allocator/allocator_environment.h"

#include <doctest/doctest.h>

namespace vramfit {

TEST_CASE("a variable that says the same as --allocator in other words does not contradict it") {
  CHECK(asks_for_allocator("", "expandable"));
  CHECK(asks_for_allocator("expandable_segments:True", "expandable"));
  CHECK(asks_for_allocator("expandable_segments: True,", "expandable"));
  CHECK(asks_for_allocator("expandable_segments:True,pinned_use_background_threads:True", "expandable"));
  CHECK(asks_for_allocator("expandable_segments:False", "native"));
  CHECK(asks_for_allocator("backend:native", "native"));
  CHECK(asks_for_allocator("max_split_size_mb:64,garbage_collection_threshold:0.8",
                           "garbage_collection_threshold=0.80,max_split_size_mb=64"));
}

TEST_CASE("a variable that asks for other memory, or can't be read, contradicts --allocator") {
  CHECK_FALSE(asks_for_allocator("expandable_segments:False", "expandable"));
  CHECK_FALSE(asks_for_allocator("expandable_segments:True", "native"));
  CHECK_FALSE(asks_for_allocator("expandable_segments:True,max_split_size_mb:64", "expandable"));
  CHECK_FALSE(asks_for_allocator("backend:cudaMallocAsync", "native"));
  CHECK_FALSE(asks_for_allocator("expandable_segments:true", "expandable"));  // PyTorch refuses it as well
  CHECK_FALSE(asks_for_allocator("expandable", "expandable"));
}

}  // namespace vramfit
