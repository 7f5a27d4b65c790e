// What --compile on and --precision fp8 make of PyTorch's calls, reckoned by hand.
#include "program/pytorch/compiled/compiled.h"

#include <doctest/doctest.h>

#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "model_specs/graph.h"
#include "program/make_program.h"
#include "program/not_modelled.h"
#include "program/pytorch/calls/torch.h"
#include "program/pytorch/compiled/fp8_products.h"
#include "program/pytorch/compiled/fusion.h"
#include "tests/support/devices.h"
#include "tests/support/models.h"

namespace vramfit {
namespace {

using eager::Recording;
using eager::Tensor;
using eager::Torch;
using program::Program;
using WorkUnit = Work::Unit;

using testing::kH100;
constexpr std::int64_t kWidth = 64, kElements = 128 * kWidth;
constexpr double kWide = 4 * kElements, kNarrow = 2 * kElements;  // bytes in fp32 and in bf16

Tensor input_of(Torch& torch) { return torch.heap().make(kElements, Dtype::bf16, Category::activations, "input"); }

/// What `code` records, as the only micro-batch of a step.
template <typename Code>
Program recorded(const Code& code) {
  Recording recording;
  {
    Torch torch(recording, kH100, 2);
    const eager::Scope scope(torch.heap(), "layers.0");
    std::vector<Tensor> weights;
    for (int parameter = 0; parameter < 2; ++parameter) {
      weights.push_back(torch.heap().make(kWidth * kWidth, Dtype::bf16, Category::parameters, "weight"));
      torch.set_parameter(parameter, weights.back());
    }
    code(torch);
  }
  Program program;
  program.labels = recording.labels.take();
  program.main = std::move(recording.writer.code());
  program.sections = {{.kind = program::Section::Kind::last, .begin = 0, .end = program.main.instructions.size()}};
  return program;
}

/// The work of each call that still has any.
std::vector<Work> work_of(const Program& program) {
  std::vector<Work> list;
  for (const program::Instruction& instruction : program.main.instructions) {
    const auto* run = std::get_if<program::Run>(&instruction);
    if (run == nullptr) continue;
    for (std::uint32_t i = 0; i < run->work.count; ++i) list.push_back(program.main.work[run->work.first + i]);
  }
  return list;
}

double bytes_of(const std::vector<Work>& list, WorkUnit unit) {
  double bytes = 0;
  for (const Work& work : list) bytes += work.unit == unit ? work.bytes : 0;
  return bytes;
}

}  // namespace

TEST_CASE("calls between two products become a kernel that reads its input once and writes what the product reads") {
  Program program = recorded([](Torch& torch) {
    const Tensor x = torch.cast(torch.linear(input_of(torch), 0, kWidth, kWidth), Dtype::f32);
    torch.linear(torch.cast(torch.silu(x), Dtype::bf16), 1, kWidth, kWidth);
  });
  const std::vector<Work> before = work_of(program);
  CHECK(bytes_of(before, WorkUnit::none) == 2 * (kNarrow + kWide) + 2 * kWide);  // cast, silu, cast
  eager::fuse_calls(program);
  const std::vector<Work> after = work_of(program);
  CHECK(after.size() == 3);
  CHECK(bytes_of(after, WorkUnit::none) == 2 * kNarrow);
  CHECK(bytes_of(after, WorkUnit::product) == bytes_of(before, WorkUnit::product));
}

TEST_CASE("a kernel in backward computes what it needs from what was stored, instead of reading fp32 copies") {
  Program program = recorded([](Torch& torch) {
    Tensor y = torch.linear(input_of(torch), 0, kWidth, kWidth);
    Tensor z = torch.cast(torch.silu(torch.cast(y, Dtype::f32)), Dtype::bf16);
    y = {};
    const Tensor out = torch.linear(z, 1, kWidth, kWidth);
    z = {};
    torch.backward(out, [] {});
  });
  eager::fuse_calls(program);
  std::vector<double> kernels;
  for (const Work& work : work_of(program)) {
    if (work.unit == WorkUnit::none && work.bytes > kWide / 2) kernels.push_back(work.bytes);
  }
  // Forward: y to z. Backward: the gradient of z and y again, to that of y.
  REQUIRE(kernels.size() == 2);
  CHECK(kernels[0] == 2 * kNarrow);
  CHECK(kernels[1] == 3 * kNarrow);
}

TEST_CASE("a sum of two products is stored, as reading both again would cost more than reading it") {
  Program program = recorded([](Torch& torch) {
    const Tensor x = input_of(torch);
    const Tensor sum = torch.add(torch.linear(x, 0, kWidth, kWidth), torch.linear(x, 1, kWidth, kWidth));
    const Tensor active = torch.silu(sum);
    torch.linear(active, 0, kWidth, kWidth);
    torch.linear(torch.silu(sum), 1, kWidth, kWidth);
  });
  eager::fuse_calls(program);
  // Two factors to their sum and its silu; the sum to a second silu.
  CHECK(bytes_of(work_of(program), WorkUnit::none) == 4 * kNarrow + 2 * kNarrow);
}

TEST_CASE("a complex product stays a call of its own, and so does what is outside forward and backward") {
  const auto code = [](Torch& torch) {
    const Tensor table = torch.heap().make(kElements, Dtype::f32, Category::activations, "table");
    const Tensor x = torch.cast(torch.linear(input_of(torch), 0, kWidth, kWidth), Dtype::f32);
    torch.linear(torch.cast(torch.rotate(x, table), Dtype::bf16), 1, kWidth, kWidth);
  };
  Program program = recorded(code);
  const double eager_bytes = bytes_of(work_of(program), WorkUnit::none);
  eager::fuse_calls(program);
  CHECK(bytes_of(work_of(program), WorkUnit::none) == eager_bytes);
  Program update = recorded([](Torch& torch) { torch.silu(torch.silu(input_of(torch))); });
  update.sections.front().kind = program::Section::Kind::update;
  const double update_bytes = bytes_of(work_of(update), WorkUnit::none);
  eager::fuse_calls(update);
  CHECK(bytes_of(work_of(update), WorkUnit::none) == update_bytes);
}

TEST_CASE("FP8 products read their factors as bytes, after casts that cost less compiled than called one by one") {
  const auto code = [](Torch& torch) {
    torch.backward(torch.linear(torch.linear(input_of(torch), 0, kWidth, kWidth), 1, kWidth, kWidth), [] {});
  };
  Program called = recorded(code), compiled = recorded(code);
  const std::size_t products = 5;  // two in forward, three in backward: the input needs no gradient
  eager::use_fp8_products(called, {.is_compiled = false});
  eager::use_fp8_products(compiled, {.is_compiled = true});
  std::size_t in_fp8 = 0;
  for (const Work& work : work_of(compiled)) in_fp8 += work.unit == WorkUnit::product && work.dtype == Dtype::f8_e4m3;
  CHECK(in_fp8 == products);
  constexpr double kWeight = kWidth * kWidth, kX = kElements;
  // Compiled: of both, x and weight in forward, with their largest numbers; the gradient of the second's output, and
  // with one byte more its other layout, x's and the weight's; the gradient of the first's output, x's other layout.
  const double forward = 2 * 5 * (kX + kWeight), second = (5 + 1) * kX + kX + kWeight, first = 5 * kX + kX;
  CHECK(bytes_of(work_of(compiled), WorkUnit::cast) == forward + second + first);
  const double elements = 2 * (kX + kWeight) + (kX + kWeight) + 2 * 2 * kX;
  CHECK(bytes_of(work_of(called), WorkUnit::eager_cast) == 27 * elements);
  CHECK(bytes_of(work_of(called), WorkUnit::none) - bytes_of(work_of(recorded(code)), WorkUnit::none) == 6 * elements);
}

TEST_CASE("compiled code casts the input of several linears once, and knows largest numbers that were kept") {
  const auto code = [](Torch& torch) {
    const Tensor x = input_of(torch);
    torch.linear(x, 0, kWidth, kWidth);
    torch.linear(x, 1, kWidth, kWidth);
  };
  Program program = recorded(code);
  eager::use_fp8_products(program, {.is_compiled = true});
  constexpr double kWeight = kWidth * kWidth, kX = kElements;
  CHECK(bytes_of(work_of(program), WorkUnit::cast) == 5 * (kX + 2 * kWeight));
  for (const bool keeps : {false, true}) {
    CAPTURE(keeps);
    Program again = recorded(code);
    again.main.instructions.insert(again.main.instructions.begin(), program::Mark{Phase::backward});
    eager::use_fp8_products(again, {.is_compiled = true, .keeps_maxima = keeps});
    CHECK(bytes_of(work_of(again), WorkUnit::cast) == (keeps ? 3 : 5) * kX + 3 * 2 * kWeight);
  }
}

TEST_CASE("products outside layers, and of sizes that FP8 kernels don't take, stay in bf16") {
  for (const auto& [scope, width] : {std::pair{"output", kWidth}, {"layers.0", kWidth - 8}}) {
    CAPTURE(scope);
    Program program = recorded([&, name = scope, inputs = width](Torch& torch) {
      const eager::Scope inner(torch.heap(), name);
      torch.linear(torch.heap().make(128 * inputs, Dtype::bf16, Category::activations, "input"), 0, inputs, kWidth);
    });
    eager::use_fp8_products(program, {.is_compiled = true});
    for (const Work& work : work_of(program)) CHECK(work.dtype != Dtype::f8_e4m3);
  }
}

namespace {

Job titan_job(const std::vector<std::pair<std::string_view, std::string_view>>& fields) {
  Job job = unresolved_job();
  for (const auto& [field, value] :
       {std::pair{"runtime", "pytorch-fsdp2"}, {"modeling", "torchtitan"}, {"attention", "flash"}}) {
    job_field_named(field).set(job, value);
  }
  for (const auto& [field, value] : fields) job_field_named(field).set(job, value);
  std::vector<std::string> notes;
  return resolve_job(job, testing::small_llama(), parse_cluster("4xH100-80GB"), notes);
}

}  // namespace

TEST_CASE("a compiled job has rules for time and none for memory, and says so by its flag") {
  const Cluster cluster = parse_cluster("4xH100-80GB");
  for (const auto& [field, value, name] :
       {std::tuple{"compile", "on", "--compile on"}, {"precision", "fp8", "--precision fp8"}}) {
    CAPTURE(name);
    const Job job = titan_job({{field, value}});
    CHECK_NOTHROW(require_time_rules(job, cluster));
    CHECK_THROWS_WITH_AS(require_rules(job, cluster), doctest::Contains(name), NotModelled);
  }
  CHECK_NOTHROW(require_rules(titan_job({{"compile", "off"}}), cluster));
}

TEST_CASE("FP8 without FSDP2 is refused by its own name") {
  Job job = titan_job({{"precision", "fp8"}});
  job.runtime = Runtime::pytorch;
  CHECK_THROWS_WITH_AS(require_time_rules(job, parse_cluster("1xH100-80GB")), doctest::Contains("--precision fp8"),
                       NotModelled);
}

TEST_CASE("the own engine refuses --compile on by name") {
  Job job = unresolved_job();
  job.compile = true;
  std::vector<std::string> notes;
  const Cluster cluster = parse_cluster("4xH100-80GB");
  const Job resolved = resolve_job(job, testing::small_llama(), cluster, notes);
  CHECK_THROWS_WITH_AS(require_rules(resolved, cluster), doctest::Contains("--compile on"), NotModelled);
}

TEST_CASE("a compiled step allocates in the program what the eager one does, with fewer kernels and bytes") {
  const Graph graph = build_graph(testing::small_llama(), {});
  const auto made = [&](const char* compile) {
    const Job job = titan_job({{"compile", compile}});
    return program::make_program({.graph = graph, .job = job, .device = kH100, .coords = {}});
  };
  const Program eager = made("off"), compiled = made("on");
  CHECK(eager.main.buffers.size() == compiled.main.buffers.size());
  CHECK(eager.main.instructions.size() == compiled.main.instructions.size());
  CHECK(work_of(compiled).size() < work_of(eager).size());
  CHECK(bytes_of(work_of(compiled), WorkUnit::none) < bytes_of(work_of(eager), WorkUnit::none));
  CHECK(bytes_of(work_of(compiled), WorkUnit::product) == bytes_of(work_of(eager), WorkUnit::product));
}

}  // namespace vramfit
