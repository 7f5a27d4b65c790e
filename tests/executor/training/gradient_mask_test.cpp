#include "executor/training/gradient_mask_torch.h"

#include <doctest/doctest.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>

#include <cmath>
#include <fstream>
#include <map>
#include <mutex>

#include "base/error.h"
#include "executor/sharding/unit_state_torch.h"
#include "executor/training/tensor_torch.h"
#include "tests/executor/training/thread_ranks_torch.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_graph.h"

using namespace vramfit;  // NOLINT(google-build-using-namespace): the test's only subject

namespace {

std::vector<float> kept(std::uint64_t key, std::int64_t first, std::int64_t count, double keep) {
  at::Tensor gradient = at::full({count}, 1.0, at::kFloat);
  mask_on_cpu(gradient, {.key = key, .first = first, .keep = keep});
  return {gradient.const_data_ptr<float>(), gradient.const_data_ptr<float>() + count};
}

/// Every parameter's gradient, of ones where it is not masked, put together from the shards of `ranks` ranks.
std::map<std::string, std::vector<float>> masked_ones(Job job, int ranks, int replicas, std::int64_t step) {
  const Graph graph = testing::tiny_graph({.vocab = 11, .hidden = 6, .blocks = 2});
  job.mesh = {.replicate = replicas, .shard = ranks / replicas};
  const UnitLayout layout = lay_out_units(graph, job);
  std::map<std::string, std::vector<float>> whole;
  std::mutex mutex;
  testing::run_rank_threads(ranks, layout.shards, [&](ProcessGroups& groups) {
    const int rank = groups.shard().rank();
    GradientMasks masks(
        {.graph = graph, .job = job, .layout = layout, .shard_rank = rank, .place = at::kCPU, .seed = 5});
    std::vector<at::Tensor> gradients, bytes;
    for (const Unit& unit : layout.units) {
      gradients.push_back(unit.trainable_elements > 0 ? at::ones({unit.trainable_elements}, at::kFloat) : at::Tensor());
      bytes.push_back(unit.trainable_elements > 0 ? at::empty({unit.trainable_elements}, at::kByte) : at::Tensor());
    }
    if (std::holds_alternative<GradientMaskFile>(job.gradient_mask)) masks.load(std::move(bytes));
    masks.apply(step, gradients);
    const std::scoped_lock lock(mutex);
    for (std::size_t u = 0; u < gradients.size(); ++u) {
      if (!gradients[u].defined()) continue;
      for (const UnitParameter& p : layout.units[u].parameters) {
        std::vector<float>& values = whole[graph.parameters[static_cast<std::size_t>(p.parameter)].name];
        values.resize(static_cast<std::size_t>(p.rows * p.row_elements));
        const at::Tensor slice = UnitState::slice(gradients[u], p);
        for (std::int64_t i = 0; i < p.shard_elements; ++i) {
          const std::int64_t at = rank * p.shard_elements + i;
          if (at < p.rows * p.row_elements) values[static_cast<std::size_t>(at)] = slice.const_data_ptr<float>()[i];
        }
      }
    }
  });
  return whole;
}

Job masked_job(const std::string& sharding) {
  Job job = testing::tiny_job();
  job.sharding = sharding;
  job.gradient_mask = RandomGradientMask{0.25};
  return job;
}

std::string file_of(const testing::TemporaryDirectory& directory, const std::vector<testing::TensorToStore>& tensors) {
  const std::string path = directory.path().string() + "/mask.safetensors";
  std::ofstream(path, std::ios::binary) << testing::safetensors_bytes(tensors);
  return path;
}

std::string error_of(const Job& job) {
  try {
    masked_ones(job, 1, 1, 1);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("an element is kept with the probability asked for, and scaled by its inverse") {
  for (const double keep : {0.1, 0.3, 0.9, 1.0}) {
    constexpr std::int64_t kCount = 200000;
    double mean = 0;
    for (const float value : kept(mask_key(1, 1, "w"), 0, kCount, keep)) {
      CHECK((value == 0 || value == static_cast<float>(1 / keep)));
      mean += static_cast<double>(value) / kCount;
    }
    CAPTURE(keep);
    // Five standard deviations; the rest is the rounding of the mean itself.
    CHECK(std::abs(mean - 1) <= 1e-9 + 5 * std::sqrt((1 - keep) / keep / kCount));
  }
}

TEST_CASE("masks of other steps, seeds, parameters and elements agree no more often than chance has it") {
  constexpr std::int64_t kCount = 100000;
  const auto agreement = [&](const std::vector<float>& a, const std::vector<float>& b) {
    double equal = 0;
    for (std::size_t i = 0; i < a.size(); ++i) equal += a[i] == b[i] ? 1.0 / kCount : 0;
    return equal;
  };
  const std::vector<float> mask = kept(mask_key(1, 1, "w"), 0, kCount, 0.5);
  CHECK(agreement(mask, kept(mask_key(1, 1, "w"), 0, kCount, 0.5)) == doctest::Approx(1));
  for (const std::uint64_t key : {mask_key(1, 2, "w"), mask_key(2, 1, "w"), mask_key(1, 1, "v")}) {
    CHECK(std::abs(agreement(mask, kept(key, 0, kCount, 0.5)) - 0.5) < 0.01);
  }
  CHECK(std::abs(agreement(mask, kept(mask_key(1, 1, "w"), 1, kCount, 0.5)) - 0.5) < 0.01);
}

// On CPU, LibTorch rounds the factor of a product in bf16 first; a power of two is not changed by that.
TEST_CASE("a mask by LibTorch's calls is the mask drawn element by element") {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const double keep : {0.125, 0.3, 1.0}) {
      if (type == at::kBFloat16 && keep == 0.3) continue;
      for (const std::int64_t first : {std::int64_t{0}, std::int64_t{12345}, std::int64_t{1} << 40}) {
        at::Tensor one = at::randn({5000}).to(type), other = one.clone();
        const MaskDraw draw{.key = mask_key(9, 4, "layers.0.weight"), .first = first, .keep = keep};
        mask_on_cpu(one, draw);
        mask_by_calls(other, draw, at::empty({6000}, at::kLong), at::empty({5000}, at::kLong));
        CHECK(one.eq(other).all().item<bool>());
        CHECK((one.ne(0).sum().item<std::int64_t>() < 5000) == (keep < 1));
      }
    }
  }
}

TEST_CASE("every mesh draws the same masks, to the bit") {
  const auto alone = masked_ones(masked_job("no-shard"), 1, 1, 3);
  REQUIRE(alone.size() == 4);
  CHECK(masked_ones(masked_job("no-shard"), 1, 1, 4) != alone);
  CHECK(masked_ones(masked_job("no-shard"), 2, 2, 3) == alone);
  for (const int ranks : {2, 4}) CHECK(masked_ones(masked_job("full-shard"), ranks, 1, 3) == alone);
  CHECK(masked_ones(masked_job("hybrid-shard"), 4, 2, 3) == alone);
}

TEST_CASE("a mask from a file is applied as it stands, and what the file lacks is trained whole") {
  const testing::TemporaryDirectory directory;
  std::string mask;
  for (int i = 0; i < 66; ++i) mask += static_cast<char>(i % 3 == 0);
  Job job = masked_job("full-shard");
  job.gradient_mask = GradientMaskFile{file_of(directory, {{"embed.weight", "U8", "[11, 6]", mask}})};
  const auto whole = masked_ones(job, 1, 1, 1);
  for (std::size_t i = 0; i < 66; ++i) CHECK(whole.at("embed.weight")[i] == (i % 3 == 0 ? 1 : 0));
  for (const float value : whole.at("head.weight")) CHECK(value == 1);
  for (const int ranks : {2, 4}) CHECK(masked_ones(job, ranks, 1, 1) == whole);
}

TEST_CASE("a file that is no set of masks of the model is refused by name, and never read beyond its end") {
  const testing::TemporaryDirectory directory;
  const std::string mask(66, '\1');
  Job job = masked_job("no-shard");
  const auto error = [&](const std::string& name, const std::string& dtype, const std::string& shape,
                         const std::string& data) {
    job.gradient_mask = GradientMaskFile{file_of(directory, {{name, dtype, shape, data}})};
    return error_of(job);
  };
  CHECK(error("embed.weight", "BOOL", "[11, 6]", mask).empty());
  CHECK(error("embed.wieght", "U8", "[11, 6]", mask).find("did you mean \"embed.weight\"") != std::string::npos);
  CHECK(error("embed.weight", "U8", "[6, 11]", mask).find("[6, 11]") != std::string::npos);
  CHECK(error("embed.weight", "F32", "[11, 6]", std::string(264, '\0')).find("F32") != std::string::npos);
  CHECK(error("embed.weight", "U8", "[11, 6]", std::string(65, '\1') + '\2').find("element 65") != std::string::npos);
  CHECK(error("embed.weight", "U8", "[11, 60]", mask).find("mask.safetensors") != std::string::npos);
  job.freeze = {"embed.*"};
  CHECK(error("embed.weight", "U8", "[11, 6]", mask).find("frozen") != std::string::npos);
  job.freeze.clear();
  job.gradient_mask = GradientMaskFile{directory.path().string() + "/none.safetensors"};
  CHECK(error_of(job).find("none.safetensors") != std::string::npos);
}
