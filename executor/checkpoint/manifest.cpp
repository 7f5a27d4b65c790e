#include "executor/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>

#include "base/json/json_value.h"
#include "base/json/json_writer.h"
#include "base/text/suggest.h"
#include "executor/checkpoint/crc32c.h"
#include "executor/checkpoint/read_blocks.h"
#include "job/fields/job_json.h"

namespace vramfit {
namespace {

constexpr std::string_view kSchema = "vramfit/checkpoint@1";
constexpr std::size_t kMostFiles = 1'000'000;
constexpr std::int64_t kLongestManifest = std::int64_t{1} << 27;
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::string_view kEnd = "\n}\n";

using Texts = std::vector<std::pair<std::string, std::string>>;

std::string closing(std::string_view body) { return fmt::format(",\n  \"crc32c\": \"{:08x}\"{}", crc32c(body), kEnd); }

[[noreturn]] void damaged(const std::string& where, const std::string& why) {
  throw DamagedCheckpoint(fmt::format("checkpoint {}: {}", printable(where), why));
}

void write_texts(JsonWriter& writer, std::string_view key, const Texts& texts) {
  writer.key(key).begin_array();
  for (const auto& [name, value] : texts)
    writer.begin_object().member("name", name).member("value", value).end_object();
  writer.end_array();
}

Manifest read_document(const JsonValue& document, const std::string& where) {
  JsonObject object(document, where);
  Manifest manifest;
  object.skip("schema");
  object.skip("job");
  object.skip("crc32c");
  manifest.step = object.integer("step", 1, kMost);
  manifest.next_row = object.integer("next_row", 0, kMost);
  for (JsonObject& fact : object.objects("facts")) manifest.facts.emplace_back(fact.text("name"), fact.text("value"));
  for (JsonObject& number : object.objects("numbers")) {
    constexpr double kLargest = std::numeric_limits<double>::max();
    manifest.numbers.emplace_back(number.text("name"), number.real("value", -kLargest, kLargest));
  }
  for (JsonObject& file : object.objects("files")) {
    // Names are never taken from the manifest: no path of its choosing is opened.
    if (file.text("name") != rank_file(manifest.files.size())) file.fail("name", "not the file of this rank");
    manifest.files.push_back(
        {file.integer("bytes", 0, kMost),
         static_cast<std::uint32_t>(file.integer("crc32c", 0, std::numeric_limits<std::uint32_t>::max()))});
    file.finish();
    if (manifest.files.size() > kMostFiles) object.fail("files", "too many");
  }
  if (manifest.files.empty()) object.fail("files", "empty");
  object.finish();
  return manifest;
}

}  // namespace

std::string rank_file(std::size_t rank) { return fmt::format("rank-{:05}.safetensors", rank); }

std::string manifest_to_json(const Manifest& manifest, const Job& job) {
  JsonWriter writer;
  writer.begin_object().member("schema", std::string(kSchema));
  writer.member("step", manifest.step).member("next_row", manifest.next_row);
  write_texts(writer, "facts", manifest.facts);
  writer.key("numbers").begin_array();
  for (const auto& [name, value] : manifest.numbers) {
    writer.begin_object().member("name", name).member("value", value).end_object();
  }
  writer.end_array().key("files").begin_array();
  for (std::size_t rank = 0; rank < manifest.files.size(); ++rank) {
    writer.begin_object().member("name", rank_file(rank)).member("bytes", manifest.files[rank].bytes);
    writer.member("crc32c", std::int64_t{manifest.files[rank].crc32c}).end_object();
  }
  writer.end_array().key("job");
  write_job(writer, job);
  std::string text = writer.end_object().take();
  text.resize(text.size() - kEnd.size());
  return text + closing(text);
}

Manifest manifest_from_json(std::string_view text, const std::string& where) {
  const std::size_t closing_bytes = closing("").size();
  if (text.size() <= closing_bytes) damaged(where, "too short for a manifest");
  const std::string_view body = text.substr(0, text.size() - closing_bytes);
  if (text.substr(body.size()) != closing(body)) damaged(where, "the manifest's checksum differs: the file is damaged");
  try {
    const JsonValue document = parse_json(text, where, {.bytes = static_cast<std::size_t>(kLongestManifest)});
    JsonObject object(document, where);
    const std::string schema = object.text("schema");
    if (schema != kSchema) {
      throw ModelError(fmt::format("checkpoint {}: format \"{}\"; this version reads {}", printable(where),
                                   printable(schema, 60), kSchema));
    }
    return read_document(document, where);
  } catch (const InputError& error) {
    throw DamagedCheckpoint(fmt::format("checkpoint {}", error.what()));
  }
}

Manifest read_manifest(const std::string& folder) {
  const std::string path = folder + "/" + std::string(kManifestFile);
  std::string text;
  try {
    text = read_file(path, kCheckpointFile, kLongestManifest);
  } catch (const ModelError& error) {
    throw DamagedCheckpoint(error.what());
  }
  return manifest_from_json(text, path);
}

void verify_file(const std::string& folder, const Manifest& manifest, std::size_t rank) {
  const SavedFile& expected = manifest.files.at(rank);
  const std::string path = folder + "/" + rank_file(rank);
  try {
    const File file(path, kCheckpointFile);
    if (file.bytes() != expected.bytes) {
      damaged(path, fmt::format("{} bytes, the manifest says {}", file.bytes(), expected.bytes));
    }
    std::uint32_t checksum = 0;
    read_blocks(file, 0, file.bytes(),
                [&](std::int64_t /*done*/, std::span<char> block) { checksum = crc32c(block, checksum); });
    if (checksum != expected.crc32c) damaged(path, "its checksum differs from the manifest's: the file is damaged");
  } catch (const DamagedCheckpoint&) {
    throw;
  } catch (const ModelError& error) {
    throw DamagedCheckpoint(error.what());
  }
}

void check_facts(const Manifest& saved, const Texts& now, const std::string& where) {
  for (const auto& [name, value] : now) {
    const auto found = std::ranges::find(saved.facts, name, &Texts::value_type::first);
    const std::string theirs = found == saved.facts.end() ? "nothing" : printable(found->second, 100);
    // A field that is newer than the checkpoint is not among its facts; "" is its default.
    if (found == saved.facts.end() ? value.empty() : found->second == value) continue;
    throw InputError(
        fmt::format("--resume {}: {} is {} there and {} in this run; a resumed run keeps the settings that it began "
                    "with: give the same "
                    "again, or begin a new run",
                    printable(where), name, theirs, printable(value, 100)));
  }
}

}  // namespace vramfit
