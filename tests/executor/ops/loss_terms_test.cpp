// Label smoothing and z-loss against PyTorch's cross entropy, over whole logits and in chunks.
#include <doctest/doctest.h>

#include "tests/executor/ops/loss_cases_torch.h"

namespace vramfit::testing {

namespace {

using Terms = LossTerms;

constexpr double kScale = 1.0 / 17;

}  // namespace

TEST_CASE("label smoothing and z-loss are PyTorch's cross entropy and PaLM's square, of labelled rows alone") {
  for (const std::int64_t rows : {1, 40, 300}) {
    for (const Terms& terms :
         {Terms{.smoothing = 0.1}, Terms{.z = 0.01}, Terms{.smoothing = 0.3, .z = 0.02}, Terms{.smoothing = 1}}) {
      CAPTURE(rows);
      CAPTURE(terms.smoothing);
      CAPTURE(terms.z);
      check_op_in_all_ways(whole_loss(rows, 97, terms, kScale));
    }
  }
}

TEST_CASE("so they are in chunks, and below a softcap") {
  for (const std::int64_t chunks : {1, 3}) {
    for (const Terms& terms : {Terms{.smoothing = 0.1}, Terms{.z = 0.01}, Terms{.smoothing = 0.3, .z = 0.02},
                               Terms{.smoothing = 0.3, .z = 0.02, .cap = 2}}) {
      CAPTURE(chunks);
      CAPTURE(terms.smoothing);
      CAPTURE(terms.z);
      CAPTURE(terms.cap);
      check_op_in_all_ways(chunked_loss(chunks, terms, kScale));
    }
  }
}

}  // namespace vramfit::testing
