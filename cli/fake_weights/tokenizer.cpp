#include <fmt/format.h>

#include "base/error.h"
#include "base/json/json_writer.h"
#include "base/text/suggest.h"
#include "cli/fake_weights/checkpoint.h"

namespace vramfit {
namespace {

constexpr int kBytes = 256;
constexpr const char* kSpecial = "<|endoftext|>";
constexpr const char* kChatTemplate =
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";

/// The letter that stands for a byte in byte-level vocabularies: itself if it can be printed, else one from 256 on.
std::string letter_of(int byte) {
  const auto is_printed = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
  };
  int point = byte;
  if (!is_printed(byte)) {
    point = kBytes;
    for (int before = 0; before < byte; ++before) point += is_printed(before) ? 0 : 1;
  }
  if (point < 0x80) return {static_cast<char>(point)};
  return {static_cast<char>(0xC0 | point >> 6), static_cast<char>(0x80 | (point & 0x3F))};
}

void write_byte_level(JsonWriter& writer, const char* key) {
  writer.key(key).begin_object().member("type", "ByteLevel").member("add_prefix_space", false);
  writer.member("trim_offsets", true).member("use_regex", true).end_object();
}

}  // namespace

std::string tokenizer_text(const ModelSpec& spec) {
  if (spec.vocab_size <= kBytes) {
    throw ModelError(fmt::format("--tokenizer: {} has a vocabulary of {}, and bytes need {}", printable(spec.name),
                                 spec.vocab_size, kBytes + 1));
  }
  JsonWriter writer;
  writer.begin_object().member("version", "1.0").key("truncation").null().key("padding").null();
  writer.key("added_tokens").begin_array().begin_object().member("id", kBytes).member("content", kSpecial);
  for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) writer.member(flag, false);
  writer.member("special", true).end_object().end_array().key("normalizer").null();
  write_byte_level(writer, "pre_tokenizer");
  write_byte_level(writer, "post_processor");
  write_byte_level(writer, "decoder");
  writer.key("model").begin_object().member("type", "BPE").key("dropout").null().key("unk_token").null();
  writer.key("continuing_subword_prefix").null().key("end_of_word_suffix").null().member("fuse_unk", false);
  writer.member("byte_fallback", false).member("ignore_merges", false).key("vocab").begin_object();
  for (int byte = 0; byte < kBytes; ++byte) writer.member(letter_of(byte), byte);
  return writer.end_object().key("merges").begin_array().end_array().end_object().end_object().take();
}

std::string tokenizer_config_text(const ModelSpec& spec) {
  JsonWriter writer;
  writer.begin_object().member("tokenizer_class", "PreTrainedTokenizerFast");
  for (const char* role : {"bos_token", "eos_token", "pad_token"}) writer.member(role, kSpecial);
  writer.member("model_max_length", spec.max_position_embeddings).member("chat_template", kChatTemplate);
  return writer.end_object().take();
}

}  // namespace vramfit
