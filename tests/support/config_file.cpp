#include "tests/support/config_file.h"

#include <fstream>
#include <iterator>
#include <stdexcept>

#include "model_specs/config.h"

namespace vramfit::testing {

const std::vector<std::string>& small_models() {
  static const std::vector<std::string> kNames{"bert",  "gemma",   "gemma2", "gemma3_text", "gpt2", "granite",
                                               "llama", "mistral", "phi3",   "qwen2",       "qwen3"};
  return kNames;
}

std::string small_model_text(const std::string& name) {
  // ctest runs every test in the source's root.
  std::ifstream file("tests/models/" + name + ".json", std::ios::binary);
  if (!file) throw std::runtime_error("tests/models/" + name + ".json can't be read");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

ModelSpec small_model(const std::string& name) { return parse_config(small_model_text(name), name + ".json"); }

}  // namespace vramfit::testing
