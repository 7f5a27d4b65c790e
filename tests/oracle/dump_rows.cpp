// Prints rows of a token file in the order that training reads them, for the reference loop: one line a row, the ids,
// then the labels. Arguments: FILE TOKEN_BYTES VOCABULARY SEQUENCE SEED MASKED(0|1) ROWS.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "executor/data/data.h"

namespace {

void print(const std::vector<std::int64_t>& numbers) {
  for (const std::int64_t number : numbers) std::printf("%lld ", static_cast<long long>(number));
}

void dump_rows(char** argv) {
  const vramfit::DataOptions options{.paths = {argv[1]},
                                     .token_bytes = std::atoi(argv[2]),
                                     .vocab_size = std::atoll(argv[3]),
                                     .sequence = std::atoll(argv[4]),
                                     .seed = static_cast<std::uint64_t>(std::atoll(argv[5])),
                                     .masked_lm = std::atoi(argv[6]) != 0};
  const auto data = vramfit::open_dataset(options);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(options.sequence)), labels(ids.size());
  for (std::int64_t row = 0; row < std::atoll(argv[7]); ++row) {
    data->row(row, ids, labels);
    print(ids);
    print(labels);
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 8) throw std::runtime_error("usage: dump_rows FILE TOKEN_BYTES VOCABULARY SEQUENCE SEED MASKED ROWS");
    dump_rows(argv);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
