#include "phantom/core/fat_binary.h"

#include <doctest/doctest.h>
#include <zstd.h>

#include <cstdint>
#include <cstring>
#include <string>

using vramfit::phantom::image_for;
using vramfit::phantom::unpack_lz4;

namespace {

using Bytes = std::vector<std::byte>;

struct Image {
  int kind = 2;  // 1: PTX, 2: cubin
  int capability = 90;
  std::string content;
  std::uint64_t flags = 0x11;
};
constexpr std::uint64_t kZstd = 0x8000, kThisCardOnly = 0x100000;

template <class T>
void put(Bytes& out, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) out.push_back(static_cast<std::byte>(value >> 8 * i));
}

Bytes fat_binary(const std::vector<Image>& images) {
  Bytes entries;
  for (const Image& image : images) {
    std::string payload = image.content;
    if ((image.flags & kZstd) != 0) {
      payload.resize(ZSTD_compressBound(image.content.size()));
      payload.resize(ZSTD_compress(payload.data(), payload.size(), image.content.data(), image.content.size(), 3));
    }
    const auto packed = static_cast<std::uint32_t>(payload.size());
    payload.resize((payload.size() + 7) / 8 * 8, '\0');
    put<std::uint16_t>(entries, static_cast<std::uint16_t>(image.kind));
    put<std::uint16_t>(entries, 0x101);
    put<std::uint32_t>(entries, 64);
    put<std::uint64_t>(entries, payload.size());
    put<std::uint32_t>(entries, packed);
    put<std::uint32_t>(entries, 0);
    put<std::uint32_t>(entries, 0x00010008);
    put<std::uint32_t>(entries, static_cast<std::uint32_t>(image.capability));
    put<std::uint64_t>(entries, 0);
    put<std::uint64_t>(entries, image.flags);
    put<std::uint64_t>(entries, 0);
    put<std::uint64_t>(entries, image.content.size());
    for (const char letter : payload) entries.push_back(static_cast<std::byte>(letter));
  }
  Bytes whole;
  put<std::uint32_t>(whole, 0xBA55ED50);
  put<std::uint16_t>(whole, 1);
  put<std::uint16_t>(whole, 16);
  put<std::uint64_t>(whole, entries.size());
  for (const std::byte each : entries) whole.push_back(each);
  return whole;
}

std::string chosen(const std::vector<Image>& images, int major, int minor) {
  const auto image = image_for(fat_binary(images), major, minor);
  if (!image) return "none";
  return std::string(reinterpret_cast<const char*>(image->content.data()), image->content.size()).substr(0, 4);
}

}  // namespace

TEST_CASE("a card runs the cubin of its major version with the highest minor that is not above its own") {
  const std::vector<Image> images{{2, 75, "c75 "}, {2, 80, "c80 "}, {2, 86, "c86 "}, {2, 90, "c90 "}};
  CHECK(chosen(images, 8, 0) == "c80 ");
  CHECK(chosen(images, 8, 9) == "c86 ");
  CHECK(chosen(images, 9, 0) == "c90 ");
  CHECK(chosen(images, 7, 0) == "none");
  CHECK(chosen(images, 10, 0) == "none");
}

TEST_CASE("an image for one card alone comes first there and is nothing to other cards") {
  const std::vector<Image> images{
      {2, 90, "c90a", 0x11 | kThisCardOnly}, {2, 90, "c90 "}, {2, 100, "100a", 0x11 | kThisCardOnly}};
  CHECK(chosen(images, 9, 0) == "c90a");
  CHECK(chosen(images, 10, 3) == "none");
  CHECK(chosen(images, 10, 0) == "100a");
}

TEST_CASE("PTX is taken when there is no cubin, the newest that is not above the card") {
  const std::vector<Image> images{{1, 80, "p80 "}, {1, 90, "p90 "}, {2, 80, "c80 "}};
  CHECK(chosen(images, 8, 6) == "c80 ");
  CHECK(chosen(images, 10, 0) == "p90 ");
  CHECK(chosen(images, 7, 5) == "none");
}

TEST_CASE("an image packed with zstd is unpacked") {
  const std::string content = "cubin" + std::string(5000, 'x') + "end";
  const auto image = image_for(fat_binary({{2, 90, content, 0x11 | kZstd}}), 9, 0);
  REQUIRE(image);
  CHECK(std::string(reinterpret_cast<const char*>(image->content.data()), image->content.size()) == content);
}

TEST_CASE("LZ4: literals, matches that overlap themselves, and long lengths") {
  const auto unpack = [](std::initializer_list<int> packed, std::size_t bytes) {
    Bytes in;
    for (const int byte : packed) in.push_back(static_cast<std::byte>(byte));
    const Bytes out = unpack_lz4(in, bytes);
    return std::string(reinterpret_cast<const char*>(out.data()), out.size());
  };
  CHECK(unpack({0x30, 'a', 'b', 'c'}, 3) == "abc");
  CHECK(unpack({0x10, 'a', 1, 0, 0x10, 'b'}, 6) == "aaaaab");
  CHECK(unpack({0x2F, 'a', 'b', 2, 0, 1, 0x10, 'c'}, 23) == "abababababababababababc");
  CHECK(unpack({0x10, 'a', 2, 0, 0x10, 'b'}, 6).empty());  // a match before the start
  CHECK(unpack({0x30, 'a'}, 3).empty());                   // literals that are not there
  CHECK(unpack({0x10, 'a', 1, 0, 0x10, 'b'}, 3).empty());  // more than it was said to be
}

TEST_CASE("a damaged fat binary is none") {
  const Bytes whole = fat_binary({{2, 90, "cubin", 0x11 | kZstd}, {2, 80, "other"}});
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CHECK_FALSE(image_for({whole.data(), length}, 9, 0));
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    Bytes changed = whole;
    changed[at] ^= std::byte{0xFF};
    image_for(changed, 9, 0);  // the address sanitizer and the system watch
  }
}
