#include "program/model_flops.h"

#include <doctest/doctest.h>

#include "job/cluster/cluster.h"
#include "job/fields/job_fields.h"
#include "program/stages/trainable.h"
#include "tests/support/config_file.h"

namespace vramfit {
namespace {

/// Training FLOPs of a small llama as multiples of its forward's.
double multiple_of_forward(const std::string& freeze, const LossOptions& loss = {}) {
  Job job = unresolved_job();
  if (!freeze.empty()) set_job_field(job, job_field_named("freeze"), freeze, "--freeze");
  const ModelSpec spec = testing::small_model("llama");
  const Graph graph = build_graph(spec, loss);
  const BatchShape shape{.batch = 2, .sequence = 32};
  return training_flops(graph, trainable_parameters(graph, job), shape) / forward_flops(graph, shape);
}

}  // namespace

TEST_CASE("training everything takes three times the forward's FLOPs, whatever is recomputed") {
  CHECK(multiple_of_forward("") == doctest::Approx(3));
}

TEST_CASE("they are the same wherever the gradients of the loss are made") {
  const LossOptions backward{.chunks = 3}, forward{.chunks = 3, .gradients_in_forward = true};
  for (const char* freeze : {"", "model.*", "*.mlp.*"}) {
    CHECK(multiple_of_forward(freeze, forward) == doctest::Approx(multiple_of_forward(freeze, backward)));
  }
}

TEST_CASE("frozen weights save their gradient's product, and below the lowest trainable op nothing runs backward") {
  const double only_head = multiple_of_forward("model.*");
  CHECK(only_head > 1);
  CHECK(only_head < 2);
  const double no_mlp = multiple_of_forward("*.mlp.*");
  CHECK(no_mlp > 2);
  CHECK(no_mlp < 3);
}

TEST_CASE("a card's peak follows the compute dtype, and CPU ranks have none") {
  const Card* card = card_with_cuda_name("NVIDIA H100 80GB HBM3");
  REQUIRE(card != nullptr);
  CHECK(card->name == "H100-80GB");
  CHECK(peak_flops(*card, Dtype::bf16) == 989e12);
  CHECK(peak_flops(*card, Dtype::f16) == 989e12);
  CHECK(peak_flops(*card, Dtype::f32) == 67e12);
  CHECK(peak_flops(parse_cluster("2xcpu-1GiB").card, Dtype::f32) == 0);
  CHECK(card_with_cuda_name("") == nullptr);
  CHECK(card_with_cuda_name("A card nobody made") == nullptr);
}

}  // namespace vramfit
