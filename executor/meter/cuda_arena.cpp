#include "executor/meter/cuda_arena.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <utility>

#include "executor/meter/meter.h"

// Only the base class's own getMemoryInfo, which is never called, refers to CUDA's runtime; nothing else here needs it
// to be linked.
#pragma weak cudaMemGetInfo

namespace vramfit {

namespace {

using c10::cuda::CUDACachingAllocator::CUDAAllocator;
namespace caching = c10::cuda::CUDACachingAllocator;

thread_local bool is_opening = false;

CUDAAllocator* usual = nullptr;  // the caching allocator
struct Opened {
  std::weak_ptr<Arena> arena;
  Bytes block;
};
Opened& opened() {
  static auto* const kOpened = new Opened;  // leaked: memory is freed after static destructors have run
  return *kOpened;
}

Bytes allocated_now() {
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return Bytes{usual->getDeviceStats(c10::cuda::current_device()).allocated_bytes[kAll].current};
}

/// A place in this thread's arena; null: the caching allocator answers.
void* take(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const Bytes asked{static_cast<std::int64_t>(bytes)};
  void* place = Arenas::take(asked);
  if (place == nullptr) return nullptr;
  const auto stream = reinterpret_cast<std::intptr_t>(c10::cuda::getCurrentCUDAStream().stream());
  Meter::instance().allocated(place, asked, static_cast<std::int64_t>(stream));
  return place;
}

/// The meter is told first: another thread may be given the same address right after.
bool give_back(void* address) {
  if (!Arenas::contains(address)) return false;
  Meter::instance().freed(address);
  return Arenas::give_back(address);
}

void release(void* address) {
  if (address != nullptr && !give_back(address)) usual->raw_delete(address);
}

/// Passes on all that is no allocation.
class ArenaFirst final : public CUDAAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* place = take(bytes);
    if (place == nullptr) return usual->allocate(bytes);
    return {place, place, &release, c10::Device(c10::DeviceType::CUDA, c10::cuda::current_device())};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void* raw_alloc(std::size_t bytes) override {
    void* place = take(bytes);
    return place != nullptr ? place : usual->raw_alloc(bytes);
  }
  /// Of a stream that the caller names: the script is the current stream's.
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override {
    return usual->raw_alloc_with_stream(bytes, stream);
  }
  void raw_delete(void* address) override { release(address); }

  void copy_data(void* to, const void* from, std::size_t bytes) const override { usual->copy_data(to, from, bytes); }
  bool initialized() override { return usual->initialized(); }
  void init(int devices) override { usual->init(devices); }
  void emptyCache(c10::MempoolId_t pool) override { usual->emptyCache(pool); }
  double getMemoryFraction(c10::DeviceIndex device) override { return usual->getMemoryFraction(device); }
  void setMemoryFraction(double part, c10::DeviceIndex device) override { usual->setMemoryFraction(part, device); }
  std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override {
    return usual->getExpandableSegmentSizes(device);
  }
  void enable(bool on) override { usual->enable(on); }
  bool isEnabled() const override { return usual->isEnabled(); }
  void cacheInfo(c10::DeviceIndex device, std::size_t* largest) override { usual->cacheInfo(device, largest); }
  void* getBaseAllocation(void* address, std::size_t* size) override { return usual->getBaseAllocation(address, size); }
  /// The caching allocator ignores memory that it didn't give. The program's waits order its reuse (check.h).
  void recordStream(const c10::DataPtr& block, c10::cuda::CUDAStream stream) override {
    usual->recordStream(block, stream);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return usual->getDeviceStats(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { usual->resetAccumulatedStats(device); }
  void resetPeakStats(c10::DeviceIndex device) override { usual->resetPeakStats(device); }
  caching::SnapshotInfo snapshot(c10::MempoolId_t pool, bool traces) override { return usual->snapshot(pool, traces); }
  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override {
    usual->beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    usual->endAllocateToPool(device, pool);
  }
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) override { usual->releasePool(device, pool); }
  caching::ShareableHandle shareIpcHandle(void* address) override { return usual->shareIpcHandle(address); }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return usual->getIpcDevPtr(std::move(handle)); }
  bool isHistoryEnabled() override { return usual->isHistoryEnabled(); }
  void recordHistory(bool on, caching::CreateContextFn recorder, std::size_t entries, caching::RecordContext when,
                     bool clear, const std::vector<std::string>& skipped) override {
    usual->recordHistory(on, recorder, entries, when, clear, skipped);
  }
  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override {
    usual->attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) override {
    usual->attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(c10::DeviceIndex from, c10::DeviceIndex to) override { usual->enablePeerAccess(from, to); }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                          cudaStream_t stream, bool is_peer) override {
    return usual->memcpyAsync(to, to_device, from, from_device, bytes, stream, is_peer);
  }
  std::shared_ptr<caching::AllocatorState> getCheckpointState(c10::DeviceIndex device, c10::MempoolId_t id) override {
    return usual->getCheckpointState(device, id);
  }
  caching::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device,
                                                  std::shared_ptr<caching::AllocatorState> state) override {
    return usual->setCheckpointPoolState(device, std::move(state));
  }
  std::string name() override { return usual->name(); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return usual->getMemoryInfo(device);
  }
};

/// Once a process. Blocks that the caching allocator gave before keep its own deleter.
void install() {
  if (usual != nullptr) return;
  usual = caching::get();
  static auto* const kAllocator = new ArenaFirst;
  caching::allocator.store(kAllocator);
}

}  // namespace

bool is_opening_cuda_arena() { return is_opening; }

std::shared_ptr<Arena> cuda_arena() { return opened().arena.lock(); }

Bytes cuda_arena_block() { return opened().block; }

std::shared_ptr<Arena> open_cuda_arena(arena::Script script) {
  install();
  const Bytes before = allocated_now();
  is_opening = true;
  void* base = nullptr;
  try {
    base = usual->raw_alloc(static_cast<std::size_t>(script.size.n));
  } catch (...) {
    is_opening = false;
    throw;
  }
  is_opening = false;
  std::shared_ptr<Arena> arena =
      Arenas::add(std::move(script), {.base = base, .release = [](void* held) { usual->raw_delete(held); }});
  opened() = {.arena = arena, .block = allocated_now() - before};
  return arena;
}

}  // namespace vramfit
