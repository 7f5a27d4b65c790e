#include "cli/explain/memory_message.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cli/explain/advice.h"
#include "cli/explain/card_use.h"

namespace vramfit {
namespace {

Bytes gib(double value) { return Bytes{static_cast<std::int64_t>(value * static_cast<double>(kGiB.n) + 0.5)}; }

}  // namespace

TEST_CASE("sizes are read as PyTorch writes them, and nothing else is one") {
  CHECK(size_at("2.00 GiB total") == 2 * kGiB);
  CHECK(size_at("1024.00 MiB.") == kGiB);
  CHECK(size_at("512.50 KiB") == Bytes{524800});
  CHECK(size_at("0 bytes free") == Bytes{0});
  for (const char* const text :
       {"", "GiB", "x GiB", "2.00", "2.00 TiB", "-1.00 GiB", "99999999999.00 GiB", "nan GiB", "inf GiB"}) {
    CHECK_FALSE(size_at(text).has_value());
  }
}

TEST_CASE("the wording of 2.0 has its figures in parentheses") {
  const MemoryMessage message = read_memory_message(
      "CUDA out of memory. Tried to allocate 1.41 GiB (GPU 3; 23.69 GiB total capacity; 20.10 GiB already allocated; "
      "1.23 GiB "
      "free; 22.00 GiB allowed; 21.50 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try "
      "setting "
      "max_split_size_mb to avoid fragmentation.");
  CHECK(message.gpu == 3);
  CHECK(message.asked == gib(1.41));
  CHECK(message.total == gib(23.69));
  CHECK(message.allocated == gib(20.10));
  CHECK(message.free == gib(1.23));
  CHECK(message.allowed == gib(22));
  CHECK(message.reserved == gib(21.5));
  const CardUse use = use_of(message);
  CHECK(use.unallocated == gib(21.5) - gib(20.1));
  CHECK(use.limit == gib(22));
  CHECK(use.available() == gib(0.5));  // what the limit leaves is less than what is free
  CHECK_FALSE(use.others.has_value());
  CHECK(use.rest == gib(23.69) - gib(21.5) - gib(1.23));  // nobody says whose
  const std::vector<Advice> advice = advice_for(use, {});
  const auto segments = std::ranges::find_if(
      advice, [](const Advice& each) { return each.what.find("expandable_segments") != std::string::npos; });
  REQUIRE(segments != advice.end());
  CHECK(segments->what.starts_with("PyTorch 2.1 or newer"));  // 2.0 has none
}

TEST_CASE("the wordings from 2.1 on have sentences, with processes, a limit and private pools") {
  // 2.1 misspelt "capacity".
  const MemoryMessage old = read_memory_message(
      "CUDA out of memory. Tried to allocate 32.00 MiB. GPU 0 has a total capacty of 4.00 GiB of which 41.56 MiB is "
      "free. "
      "Including non-PyTorch memory, this process has 3.44 GiB memory in use. Of the allocated memory 2.58 GiB is "
      "allocated by "
      "PyTorch, and 1.90 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try "
      "setting "
      "max_split_size_mb to avoid fragmentation.");
  CHECK(old.total == gib(4));
  CHECK(use_of(old).own_outside == gib(3.44) - gib(2.58) - Bytes{1992294});

  const MemoryMessage message = read_memory_message(
      "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 7 has a total capacity of 79.15 GiB of which 3.56 MiB is "
      "free. "
      "Process 123 has 1.10 GiB memory in use. Process 9 has 2.00 GiB memory in use. Including non-PyTorch memory, "
      "this process "
      "has 76.02 GiB memory in use. 77.00 GiB allowed; Of the allocated memory 74.98 GiB is allocated by PyTorch, with "
      "3.00 GiB "
      "allocated in private pools (e.g., CUDA Graphs), and 511.20 MiB is reserved by PyTorch but unallocated.");
  CHECK(message.gpu == 7);
  CHECK(message.asked == 20 * kMiB);
  CHECK(message.private_pools == 3 * kGiB);
  CHECK(message.allowed == 77 * kGiB);
  const CardUse use = use_of(message);
  CHECK(use.others == gib(1.1) + gib(2));
  CHECK(use.largest_other == 9);
  CHECK_FALSE(use.own_by_size);
  CHECK(*use.own_outside < gib(0.55));
}

TEST_CASE("in a container, where PyTorch doesn't know its own number, the process that is large enough is it") {
  const std::string begin =
      "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 0.10 GiB is "
      "free. ";
  const std::string end =
      "Of the allocated memory 60.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.";
  const CardUse use = use_of(read_memory_message(
      begin + "Process 5 has 17.00 GiB memory in use. Process 6 has 62.00 GiB memory in use. " + end));
  CHECK(use.own_by_size);
  CHECK(use.own_outside == kGiB);
  CHECK(use.others == 17 * kGiB);
  const CardUse none = use_of(read_memory_message(begin + end));
  CHECK_FALSE(none.own_outside.has_value());
  CHECK(*none.rest > 18 * kGiB);
}

TEST_CASE("cudaMallocAsync's table, a memory fraction and libraries have wordings of their own") {
  const MemoryMessage table = read_memory_message(
      "would exceed allowed memory. (out of memory) Currently allocated     : 23.11 GiB Requested               : 1.00 "
      "GiB Device limit "
      "           : 23.52 GiB Free (according to CUDA): 90.48 MiB PyTorch limit (set by user-supplied memory fraction) "
      "               "
      "         : 17179869184.00 GiB");
  CHECK(table.by == RefusedBy::async_allocator);
  CHECK(table.allocated == gib(23.11));
  CHECK(table.asked == kGiB);
  CHECK(table.total == gib(23.52));
  CHECK(table.free == Bytes{94875156});
  CHECK_FALSE(table.allowed.has_value());  // 2^64 bytes: none
  CHECK(read_memory_message("CUDA error: out of memory").by == RefusedBy::library);
  CHECK(find_memory_message(
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`") == 26);
  CHECK(find_memory_message("Out of memory: Killed process 123 (python)") == std::string::npos);
  const MemoryMessage fraction = read_memory_message(
      "CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction "
      "limit. "
      "Requested size: 512.00 MiB");
  CHECK(fraction.by == RefusedBy::memory_fraction);
  CHECK(fraction.asked == 512 * kMiB);
}

TEST_CASE("2.15 says that expandable segments are on, so they are no advice") {
  const MemoryMessage message = read_memory_message(
      "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 23.52 GiB of which 0.20 GiB is "
      "free. "
      "Including non-PyTorch memory, this process has 23.30 GiB memory in use. Of the allocated memory 22.00 GiB is "
      "allocated by "
      "PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated. expandable_segments is enabled. If instead the "
      "process is "
      "running out of virtual address space (VSZ), expandable segments may be over-reserving VA");
  CHECK(use_of(message).expandable);
  CHECK_FALSE(advice_for(use_of(message), {}).front().enough);
}

TEST_CASE("figures that a message lacks are none") {
  const MemoryMessage message = read_memory_message("CUDA out of memory. Tried to allocate more than 1EB memory.");
  CHECK_FALSE(message.asked.has_value());
  CHECK_FALSE(use_of(message).lacking().has_value());
}

}  // namespace vramfit
