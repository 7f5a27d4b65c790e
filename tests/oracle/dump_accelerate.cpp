// Prints accelerate's sizes and tables of catalog models, for the comparison with accelerate itself: for each entry a
// line of JSON with its configuration, then "total BYTES", "largest BYTES", and the text. Arguments: names; none: all
// entries.
#include <cstdio>
#include <exception>
#include <string>

#include <fmt/format.h>

#include "model_specs/accelerate.h"
#include "model_specs/catalog.h"

namespace {

void dump(const vramfit::CatalogEntry& entry) {
  const vramfit::ModelSpec spec = vramfit::catalog_spec(entry);
  const vramfit::AccelerateSizes sizes = vramfit::accelerate_sizes(spec);
  fmt::print("== {}\n{}\n==\ntotal {}\nlargest {}\n", entry.id, entry.json, sizes.total.n, sizes.largest_layer.n);
  for (const vramfit::AccelerateMemoryRow& row : vramfit::accelerate_memory_rows(sizes)) {
    fmt::print("memory {},{},{},{}\n", row.dtype, row.largest_layer, row.total_size, row.training);
  }
  for (const vramfit::AccelerateTrainingRow& row : vramfit::accelerate_training_rows(sizes)) {
    fmt::print("training {},{},{},{},{}\n", row.dtype, row.model, row.gradients, row.backward, row.step);
  }
  fmt::print("{}", vramfit::accelerate_text(spec, entry.id));
}

}  // namespace

int main(int argc, char** argv) try {
  for (int i = 1; i < argc; ++i) {
    const vramfit::CatalogEntry* entry = vramfit::find_in_catalog(argv[i]);
    if (entry == nullptr) {
      std::fprintf(stderr, "%s isn't in the catalog\n", argv[i]);
      return 1;
    }
    dump(*entry);
  }
  if (argc == 1) {
    for (const vramfit::CatalogEntry& entry : vramfit::catalog()) dump(entry);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
