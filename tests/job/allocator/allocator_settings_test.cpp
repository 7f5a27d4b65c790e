#include "job/allocator/allocator_settings.h"

#include <doctest/doctest.h>

#include <string>

#include "base/error.h"

namespace vramfit {

namespace {

std::string refusal(std::string_view text) {
  try {
    parse_allocator_settings(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

bool says(std::string_view text, std::string_view part) { return refusal(text).find(part) != std::string::npos; }

}  // namespace

TEST_CASE("native and expandable are PyTorch's defaults without and with expandable segments") {
  CHECK(allocator_settings("native") == AllocatorSettings{});
  AllocatorSettings expandable;
  expandable.expandable_segments = true;
  CHECK(allocator_settings("expandable") == expandable);
  CHECK(allocator_settings("expandable_segments:True") == expandable);
  CHECK(allocator_settings("expandable_segments=True") == expandable);
  CHECK(parse_allocator_settings("") == AllocatorSettings{});
}

TEST_CASE("every key of PyTorch 2.11 is read, in any order, with spaces") {
  const AllocatorSettings s = parse_allocator_settings(
      "max_split_size_mb: 64, large_segment_size_mb:32,garbage_collection_threshold:0.8,expandable_segments:False,"
      "roundup_power2_divisions:8,per_process_memory_fraction:0.5,backend:native,release_lock_on_cudamalloc:True,"
      "graph_capture_record_stream_reuse:False,pinned_use_background_threads:True,pinned_use_cuda_host_register:True,"
      "pinned_num_register_threads:8,pinned_reserve_segment_size_mb:16,release_lock_on_hipmalloc:True,"
      "pinned_use_hip_host_register:False");
  CHECK(s.max_split == 64 * kMiB);
  CHECK(s.large_segment == 32 * kMiB);
  CHECK(s.max_non_split_rounding == 32 * kMiB);  // as the large segment, unless said
  CHECK(s.garbage_collection_threshold == 0.8);
  CHECK(s.memory_fraction == 0.5);
  CHECK(s.roundup_divisions.front() == 8);
  CHECK(s.roundup_divisions.back() == 8);
  CHECK(parse_allocator_settings("max_non_split_rounding_mb:200").max_non_split_rounding == 200 * kMiB);
  CHECK(parse_allocator_settings("backend:cudaMallocAsync").malloc_async);
}

TEST_CASE("a list of divisions names sizes from which each holds; the first holds for all below, > for all above") {
  const AllocatorSettings s = parse_allocator_settings("roundup_power2_divisions:[4:2,8:4,>:16]");
  CHECK(s.roundup_divisions[0] == 2);
  CHECK(s.roundup_divisions[2] == 2);
  CHECK(s.roundup_divisions[3] == 4);
  CHECK(s.roundup_divisions[4] == 16);
  CHECK(s.roundup_divisions[15] == 16);
}

TEST_CASE("what PyTorch refuses, and what it would skip over, is refused with key and value") {
  CHECK(says("max_split_size_mb:19", "max_split_size_mb: 19 is not a whole number from 20"));
  CHECK(says("large_segment_size_mb:40,max_split_size_mb:32", "from 40"));
  CHECK(says("large_segment_size_mb:10", "from 11"));
  CHECK(says("large_segment_size_mb:21,expandable_segments:True", "must be even"));
  CHECK(says("garbage_collection_threshold:1", "a number between 0 and 1"));
  CHECK(says("garbage_collection_threshold:nan", "a number between 0 and 1"));
  CHECK(says("per_process_memory_fraction:1.01", "a number from 0 to 1"));
  CHECK(says("expandable_segments:true", "True or False"));
  CHECK(says("roundup_power2_divisions:3", "powers of two"));
  CHECK(says("roundup_power2_divisions:[3:4]", "powers of two"));
  CHECK(says("roundup_power2_divisions:[4]", "a list"));
  CHECK(says("roundup_power2_divisions:[4:2", "a list"));
  CHECK(says("pinned_num_register_threads:256", "to 128"));
  CHECK(says("backend:managed", "native or cudaMallocAsync"));
  CHECK(says("max_split_size_mb", "expected KEY:VALUE"));
  CHECK(says("max_split_size_mb:64x", "64x"));
  CHECK(says(",", "expected KEY:VALUE"));
  CHECK(says("max_split_size:64", "did you mean \"max_split_size_mb\"?"));
}

TEST_CASE("requests are rounded to 512 bytes, or to divisions of the span between powers of two") {
  AllocatorSettings s;
  CHECK(rounded_request(s, 1) == 512);
  CHECK(rounded_request(s, 513) == 1024);
  s.roundup_divisions.fill(4);
  CHECK(rounded_request(s, 1200) == 1536);  // small: not more than 512 bytes a division
  CHECK(rounded_request(s, 2049) == 2560);  // 2048, 2560, 3072, 3584
  CHECK(rounded_request(s, 1 << 20) == 1 << 20);
  CHECK(rounded_request(s, (5 << 20) + 1) == 6 << 20);
  CHECK(rounded_request(s, (7 << 20) + 1) == 8 << 20);
}

}  // namespace vramfit
