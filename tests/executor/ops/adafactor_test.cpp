// Adafactor between ranks that hold rows of a parameter, and its epsilon. Its numbers are compared in optimizers_test.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "executor/optimizers/optimizers.h"
#include "job/optimizers/optimizers.h"
#include "program/optimizers/adafactor.h"
#include "tests/executor/ops/random_tensors_torch.h"

namespace vramfit::testing {

namespace {

constexpr std::int64_t kRows = 24, kColumns = 40, kVector = 64;

/// Some rows of a matrix and some elements of a vector.
struct Share {
  std::int64_t first = 0, rows = kRows, held_rows = kRows, first_element = 0, elements = kVector;

  std::int64_t size() const { return held_rows * kColumns + elements; }
  /// Of what is whole, with zeros for padding.
  at::Tensor of(const at::Tensor& whole) const {
    return at::cat({whole.narrow(0, first * kColumns, rows * kColumns), at::zeros({(held_rows - rows) * kColumns}),
                    whole.narrow(0, kRows * kColumns + first_element, elements)});
  }
  at::Tensor matrix(const at::Tensor& own) const { return own.narrow(0, 0, rows * kColumns); }
  at::Tensor vector(const at::Tensor& own) const { return own.narrow(0, held_rows * kColumns, elements); }
};

/// A rank's tensors.
struct Rank {
  Rank(const Share& own, const at::Tensor& whole, at::ScalarType type = at::kFloat)
      : share(own),
        parameters(own.of(whole).to(type)),
        states{at::zeros({own.held_rows}), at::zeros({kColumns}), at::zeros({own.elements}), at::zeros({1})},
        scratch(at::full({adafactor::Scratch{.elements = own.size(), .longest_row = kColumns}.size()}, NAN)),
        rows{{0, own.rows, kColumns, own.held_rows, kRows},
             {own.held_rows * kColumns, own.elements, 1, own.elements, kVector}} {}

  Share share;
  at::Tensor parameters, gradients;
  std::vector<at::Tensor> states;
  at::Tensor scratch;
  std::vector<ParameterRows> rows;
};

/// One update by all ranks, whose sums are added up.
void update(std::vector<Rank>& ranks, const at::Tensor& gradients, const OptimizerOptions& options, DeviceKind device) {
  const OptimizerStep step = optimizer_step("adafactor", device);
  std::vector<OptimizerCall> calls;
  for (Rank& rank : ranks) {
    rank.gradients = rank.share.of(gradients).to(rank.parameters.scalar_type());
    calls.push_back({.parameters = rank.parameters,
                     .gradients = rank.gradients,
                     .states = rank.states,
                     .gradient_divisor = nullptr,
                     .found_inf = nullptr,
                     .options = options,
                     .scratch = &rank.scratch,
                     .rows = rank.rows,
                     .finds_sums = true});
  }
  for (const std::int64_t numbers : {adafactor::sums_of(kColumns) + adafactor::sums_of(1), std::int64_t{2}}) {
    at::Tensor sum = at::zeros({numbers});
    for (OptimizerCall& call : calls) {
      call.sums.push_back(at::full({numbers}, NAN));
      step(call);
      sum.add_(call.sums.back());
    }
    for (OptimizerCall& call : calls) call.sums.back().copy_(sum);
  }
  for (OptimizerCall& call : calls) {
    call.finds_sums = false;
    step(call);
  }
}

at::Tensor random_whole(std::uint64_t seed) { return random_tensor({kRows * kColumns + kVector}, seed); }

}  // namespace

TEST_CASE("ranks that hold some rows of a parameter update them as one that holds all") {
  const OptimizerOptions options = complete_options({.learning_rate = 0.1, .values = {}}, "adafactor");
  // 18 rows each, so that 12 of the second rank's are padding; and a rank with nothing but padding of the matrix.
  const std::vector<Share> shares{{0, 18, 18, 0, 32}, {18, 6, 18, 32, 32}, {kRows, 0, 18, kVector, 0}};
  for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda}) {
    CAPTURE(static_cast<int>(device));
    const at::Tensor start = random_whole(1);
    std::vector<Rank> whole{Rank(Share{}, start)}, parts;
    for (const Share& share : shares) parts.emplace_back(share, start);
    for (const std::uint64_t seed : {10, 11}) {
      update(whole, random_whole(seed), options, device);
      update(parts, random_whole(seed), options, device);
    }
    std::vector<at::Tensor> matrices, vectors;
    for (const Rank& rank : parts) {
      matrices.push_back(rank.share.matrix(rank.parameters));
      vectors.push_back(rank.share.vector(rank.parameters));
      CHECK(at::equal(rank.states[1], parts.front().states[1]));
    }
    const at::Tensor together = at::cat({at::cat(matrices), at::cat(vectors)});
    const at::Tensor& alone = whole.front().parameters;
    CHECK((together - alone).norm().item<double>() < 1e-6 * alone.norm().item<double>());
    CHECK((alone - start).norm().item<double>() > 1e-2 * start.norm().item<double>());
    const at::Tensor padding = parts[1].parameters.narrow(0, 6 * kColumns, 12 * kColumns);
    CHECK(padding.count_nonzero().item<std::int64_t>() == 0);
  }
}

TEST_CASE("Adafactor's epsilon 1 is that of the parameters' dtype unless it is given") {
  const auto lost = [](at::ScalarType storage, double epsilon, double gradient = 1e-3) {
    const OptimizerOptions options =
        complete_options({.learning_rate = 0.1, .values = {{"eps1", epsilon}}}, "adafactor");
    std::vector<Rank> ranks{Rank(Share{}, random_whole(1), storage)};
    const at::Tensor start = ranks.front().parameters.to(at::kDouble);
    update(ranks, at::full({kRows * kColumns + kVector}, gradient), options, DeviceKind::cpu);
    return (ranks.front().parameters.to(at::kDouble) - start).norm().item<double>();
  };
  CHECK(lost(at::kFloat, 0) == lost(at::kFloat, std::pow(2.0, -23)));
  CHECK(lost(at::kBFloat16, 0) == lost(at::kBFloat16, std::pow(2.0, -7)));
  CHECK(lost(at::kHalf, 0, 1e-4) == lost(at::kHalf, std::pow(2.0, -10), 1e-4));
  CHECK(lost(at::kHalf, std::pow(2.0, -23), 1e-4) > 2 * lost(at::kHalf, 0, 1e-4));
  CHECK(lost(at::kBFloat16, std::pow(2.0, -23)) > 2 * lost(at::kBFloat16, 0));
  CHECK(lost(at::kFloat, 0) > 5 * lost(at::kFloat, std::pow(2.0, -7)));
}

}  // namespace vramfit::testing
