#include "executor/checkpoint/read_numbers.h"

#include <algorithm>
#include <span>
#include <vector>

#include "executor/checkpoint/write_torch.h"

namespace vramfit {
namespace {

// Numbers that have to be converted or carried to a device are read this many bytes at a time.
constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;

}  // namespace

void read_numbers(const File& file, const NumbersInFile& numbers, at::Tensor& into, std::int64_t offset) {
  if (const std::span<char> place = stored_place(into, offset, numbers.type, numbers.count); !place.empty()) {
    file.read(numbers.begin, place);
    return;
  }
  const std::int64_t width = stored_bytes(numbers.type), most = kBlockBytes / width;
  std::vector<char> block(static_cast<std::size_t>(std::min(most, numbers.count) * width));
  for (std::int64_t done = 0; done < numbers.count; done += most) {
    const std::int64_t count = std::min(most, numbers.count - done);
    const std::span<char> read = std::span(block).first(static_cast<std::size_t>(count * width));
    file.read(numbers.begin + done * width, read);
    write_numbers(into, offset + done, StoredNumbers{numbers.type, read.data(), count});
  }
}

}  // namespace vramfit
