#include "executor/checkpoint/manifest.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "executor/checkpoint/crc32c.h"
#include "job/fields/job_fields.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

Manifest example() {
  Manifest manifest;
  manifest.step = 12;
  manifest.next_row = 96;
  manifest.facts = {{"--seed", "7"}, {"--data", "625 rows 0a1b2c3d"}};
  manifest.numbers = {{"loss scale", 65536.0}};
  manifest.files = {{4096, 0xE3069283U}, {8192, 1}};
  return manifest;
}

/// `body` as if this program had written it: with its own checksum at the end.
std::string sealed(const std::string& body) {
  return fmt::format("{},\n  \"crc32c\": \"{:08x}\"\n}}\n", body, crc32c(body));
}

enum class Reading { sound, damaged, refused };

Reading reading(const std::string& text) {
  try {
    manifest_from_json(text, "m");
    return Reading::sound;
  } catch (const DamagedCheckpoint& error) {
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return Reading::damaged;
  } catch (const ModelError&) {
    return Reading::refused;
  }
}

TEST_CASE("CRC-32C gives the values of RFC 3720, however the bytes are cut") {
  const std::string digits = "123456789", zeros(32, '\0'), ones(32, '\xFF');
  CHECK(crc32c(digits) == 0xE3069283U);
  CHECK(crc32c(zeros) == 0x8A9136AAU);
  CHECK(crc32c(ones) == 0x62A8AB43U);
  const std::string text = "the quick brown fox jumps over the lazy dog";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    CHECK(crc32c(std::string_view(text).substr(cut), crc32c(std::string_view(text).substr(0, cut))) == crc32c(text));
  }
}

TEST_CASE("a manifest reads back as it was written") {
  const Manifest read = manifest_from_json(manifest_to_json(example(), unresolved_job()), "m");
  CHECK(read.step == 12);
  CHECK(read.next_row == 96);
  CHECK(read.facts == example().facts);
  CHECK(read.numbers == example().numbers);
  REQUIRE(read.files.size() == 2);
  CHECK(read.files[0].bytes == 4096);
  CHECK(read.files[0].crc32c == 0xE3069283U);
}

TEST_CASE("any flipped bit and any cut of a manifest is noticed") {
  const std::string whole = manifest_to_json(example(), unresolved_job());
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      std::string text = whole;
      text[at] = static_cast<char>(static_cast<unsigned char>(text[at]) ^ (1U << bit));
      REQUIRE(reading(text) == Reading::damaged);
    }
    REQUIRE(reading(whole.substr(0, at)) == Reading::damaged);
  }
  CHECK(reading(whole + " ") == Reading::damaged);
}

TEST_CASE("a manifest whose checksum is right but whose content is hostile is refused in one line") {
  const std::string head =
      R"({"schema": "vramfit/checkpoint@1", "job": {}, "facts": [], "numbers": [], "next_row": 0, )";
  const auto with = [&](const std::string& rest) { return sealed(head + rest); };
  const std::string file = R"({"name": "rank-00000.safetensors", "bytes": 1, "crc32c": 0})";
  CHECK(reading(with(R"("step": 1, "files": [)" + file + "]")) == Reading::sound);
  for (const char* rest :
       {R"("step": 1, "files": [{"name": "../rank-00000.safetensors", "bytes": 1, "crc32c": 0}])",
        R"("step": 1, "files": [{"name": "/etc/passwd", "bytes": 1, "crc32c": 0}])",
        R"("step": 1, "files": [{"name": "rank-00000.safetensors", "bytes": -1, "crc32c": 0}])",
        R"("step": 1, "files": [{"name": "rank-00000.safetensors", "bytes": 99999999999999999999, "crc32c": 0}])",
        R"("step": 1, "files": [{"name": "rank-00000.safetensors", "bytes": 1, "crc32c": "0"}])",
        R"("step": 1, "files": [{"name": "rank-00000.safetensors", "bytes": 1, "crc32c": 4294967296}])",
        R"("step": 1, "files": [{"name": "rank-00000.safetensors", "bytes": 1, "crc32c": 0, "run": "rm"}])",
        R"("step": 1, "files": {})", R"("step": 1, "files": [])", R"("step": 1, "files": [7])", R"("step": 1)",
        R"("step": 0, "files": [])", R"("step": "1", "files": [])", R"("files": [])"}) {
    CAPTURE(rest);
    CHECK(reading(with(rest)) == Reading::damaged);
  }
  CHECK(reading(sealed(std::string(100'000, '['))) == Reading::damaged);
  CHECK(reading(sealed("{\"schema\": \"vramfit/checkpoint@2\"")) == Reading::refused);
}

TEST_CASE("any flipped bit of a rank's file is noticed, and so is another length") {
  const testing::TemporaryDirectory directory;
  std::string bytes(700, 'x');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 37);
  Manifest manifest;
  manifest.files = {{static_cast<std::int64_t>(bytes.size()), crc32c(bytes)}};
  const auto notices = [&](const std::string& text) {
    directory.write(rank_file(0), text);
    try {
      verify_file(directory.path().string(), manifest, 0);
      return false;
    } catch (const DamagedCheckpoint&) {
      return true;
    }
  };
  CHECK(!notices(bytes));
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::string text = bytes;
    text[at] = static_cast<char>(text[at] ^ 4);
    REQUIRE(notices(text));
  }
  CHECK(notices(bytes.substr(1)));
  CHECK(notices(bytes + "x"));
  CHECK(notices(""));
}

}  // namespace
}  // namespace vramfit
