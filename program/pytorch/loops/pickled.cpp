#include "program/pytorch/loops/pickled.h"

#include <algorithm>

namespace vramfit::eager {

namespace {

/// Modules/_pickle.c: what is written goes into frames with a header, but for long texts.
class Pickler {
 public:
  void write(std::int64_t bytes) {
    frame_ += bytes;
    if (frame_ >= kFrame) end_frame();
  }
  void write_text(std::int64_t length) {
    const std::int64_t header = length < kLong ? 2 : 5;
    if (length < kFrame) return write(header + length);
    end_frame();
    total_ += header + length;
  }
  std::int64_t finish() {
    end_frame();
    return kProtocol + total_;
  }

 private:
  static constexpr std::int64_t kFrame = 64 * 1024, kLeastFrame = 4, kHeader = 9, kLong = 256, kProtocol = 2;

  void end_frame() {
    if (frame_ >= kLeastFrame) total_ += kHeader;
    total_ += frame_;
    frame_ = 0;
  }

  std::int64_t total_ = 0, frame_ = 0;
};

}  // namespace

std::int64_t pickled_texts(std::int64_t count, std::int64_t tokens) {
  constexpr std::int64_t kBatch = 1000, kWord = 5;
  Pickler pickler;
  pickler.write(1);  // the list
  pickler.write(1);  // its place in the memo
  for (std::int64_t first = 0; first < count; first += kBatch) {
    const std::int64_t texts = std::min(kBatch, count - first);
    if (texts > 1) pickler.write(1);
    for (std::int64_t i = 0; i < texts; ++i) {
      pickler.write_text(kWord * tokens - 1);
      pickler.write(1);
    }
    pickler.write(1);
  }
  pickler.write(1);
  return pickler.finish();
}

}  // namespace vramfit::eager
