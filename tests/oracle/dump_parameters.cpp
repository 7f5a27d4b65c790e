// Prints the parameters and buffers that model_specs finds in a config.json, for the comparison with transformers.
// With several paths each model is headed by "== PATH".
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "model_specs/config.h"
#include "model_specs/parameters.h"

namespace {

void dump(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  fmt::print("== {}\n", path);
  try {
    const vramfit::ModelSpec spec = vramfit::parse_config(text, path);
    fmt::print("class {}\n", spec.architecture);
    for (const vramfit::NamedShape& tensor : vramfit::parameters(spec)) {
      fmt::print("parameter {} {}\n", tensor.name, fmt::join(tensor.shape, ","));
    }
    for (const vramfit::NamedBuffer& buffer : vramfit::buffers(spec)) {
      fmt::print("buffer {} {}\n", buffer.name, fmt::join(buffer.shape, ","));
    }
    fmt::print("total {}\n", vramfit::parameter_count(spec));
  } catch (const std::exception& error) {
    fmt::print("error {}\n", error.what());
  }
}

}  // namespace

int main(int argc, char** argv) try {
  for (int i = 1; i < argc; ++i) dump(argv[i]);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
