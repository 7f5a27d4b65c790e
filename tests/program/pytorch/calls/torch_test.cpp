// Calls of PyTorch: what autograd keeps for backward, and in which order it makes gradients.
#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>
#include <variant>

#include "base/error.h"
#include "job/parameters/quantization.h"
#include "program/pytorch/calls/autocast.h"
#include "program/pytorch/calls/torch.h"
#include "program/pytorch/walk/checkpoint.h"
#include "tests/support/devices.h"

namespace vramfit {
namespace {

using eager::Recording;
using eager::Tensor;
using eager::Torch;

using testing::kH100;

TEST_CASE("two gradients of one tensor are added in place when the first is nobody else's and no view") {
  Recording recording;
  {
    Torch torch(recording, kH100, 1);
    Tensor x = torch.linear(torch.heap().make(4096, Dtype::bf16, Category::activations, "input"), 0, 64, 64);
    const Tensor y = torch.add(torch.silu(x), torch.silu(x));
    x = {};
    torch.backward(y, [] {});
  }
  const std::vector<std::string> labels = recording.labels.take();
  CHECK(std::ranges::count(labels, ": sum of gradients") == 0);
  CHECK(std::ranges::count(labels, "aten::add_") == 1);
}

TEST_CASE("two gradients that are views of products are added into a third tensor") {
  Recording recording;
  {
    Torch torch(recording, kH100, 3);
    const Tensor x = torch.linear(torch.heap().make(4096, Dtype::bf16, Category::activations, "input"), 0, 64, 64);
    const Tensor y = torch.add(torch.linear(x, 1, 64, 64), torch.linear(x, 2, 64, 64));
    torch.backward(y, [] {});
  }
  CHECK(std::ranges::count(recording.labels.take(), ": sum of gradients") == 1);
}

TEST_CASE("a frozen parameter gets no gradient, and what only it depends on neither") {
  for (const bool is_trained : {true, false}) {
    CAPTURE(is_trained);
    Recording recording;
    Torch torch(recording, kH100, 2);
    const Tensor weight = torch.heap().make(4096, Dtype::bf16, Category::parameters, "weight");
    torch.set_parameter(0, weight, is_trained);
    torch.set_parameter(1, weight);
    const Tensor input = torch.heap().make(4096, Dtype::bf16, Category::activations, "input");
    torch.backward(torch.linear(torch.linear(input, 0, 64, 64), 1, 64, 64), [] {});
    CHECK(torch.gradient(0).elements == (is_trained ? 4096 : 0));
    CHECK(torch.gradient(1).elements == 4096);
    CHECK(std::ranges::count(recording.labels.take(), ": input gradient") == (is_trained ? 1 : 0));
  }
}

TEST_CASE("the gradients of a parameter that is used twice are added before they are its own") {
  Recording recording;
  {
    Torch torch(recording, kH100, 1);
    const Tensor x = torch.linear(torch.heap().make(4096, Dtype::bf16, Category::activations, "input"), 0, 64, 64);
    torch.backward(torch.linear(x, 0, 64, 64), [] {});
    CHECK(torch.gradient(0).elements == 4096);
  }
  CHECK(std::ranges::count(recording.labels.take(), ": sum of gradients") == 1);
}

TEST_CASE("under autocast a parameter is converted once, and what checkpoints run again converts it again") {
  Recording recording;
  Torch torch(recording, kH100, 1);
  const auto conversions = [&] {
    return std::ranges::count_if(recording.writer.code().instructions, [&](const program::Instruction& instruction) {
      const auto* made = std::get_if<program::Allocate>(&instruction);
      return made != nullptr &&
             recording.writer.code().buffers[static_cast<std::size_t>(made->buffer)].bytes == Bytes{8192};
    });
  };
  const Tensor input = torch.heap().make(64, Dtype::f32, Category::activations, "input");
  torch.set_parameter(0, torch.heap().make(4096, Dtype::f32, Category::parameters, "weight"));
  {
    const eager::Autocast autocast(torch, Dtype::bf16);
    const Tensor once = torch.linear(input, 0, 64, 64), twice = torch.linear(once, 0, 64, 64);
    CHECK(once.dtype == Dtype::bf16);
    CHECK(conversions() == 1);
    const eager::Autocast same(torch, Dtype::bf16);
  }
  CHECK_FALSE(torch.autocast());
  const eager::Autocast again(torch, Dtype::bf16);
  const Tensor y = torch.linear(input, 0, 64, 64);
  CHECK(conversions() == 2);
}

TEST_CASE("a matrix in 4 bits is dequantized for each product, with its scales, and freed after it") {
  for (const char* name : {"nf4", "nf4-double"}) {
    CAPTURE(name);
    Recording recording;
    {
      Torch torch(recording, kH100, 1);
      const std::vector<Tensor> matrix = torch.make_quantized(0, 4096, *quantization_named(name), "weight");
      CHECK(matrix.front().elements == 2048);
      CHECK(torch.is_quantized(0));
      Tensor x = torch.heap().make(1024 * 64, Dtype::f32, Category::activations, "input");
      x = torch.require_gradient(x);
      const Tensor y = torch.linear_4bit(x, 0, 64, 64, {Dtype::bf16, Dtype::bf16});
      CHECK(y.dtype == Dtype::f32);
      torch.backward(y, [] {});
    }
    int weights = 0, scales = 0;
    for (const program::Instruction& instruction : recording.writer.code().instructions) {
      const auto* made = std::get_if<program::Allocate>(&instruction);
      if (made == nullptr) continue;
      const program::Buffer& buffer = recording.writer.code().buffers[static_cast<std::size_t>(made->buffer)];
      if (buffer.category != Category::temporaries) continue;
      weights += buffer.bytes == Bytes{8192} ? 1 : 0;
      scales += buffer.bytes == Bytes{256} ? 1 : 0;
    }
    CHECK(weights == 2);
    CHECK(scales == (std::string_view(name) == "nf4" ? 0 : 2));
  }
}

TEST_CASE("few rows times a matrix in 4 bits dequantize nothing in forward, and a handful are refused") {
  const auto dequantized = [](std::int64_t rows) {
    Recording recording;
    {
      Torch torch(recording, kH100, 1);
      const std::vector<Tensor> matrix = torch.make_quantized(0, 4096, *quantization_named("nf4"), "weight");
      const Tensor x = torch.heap().make(rows * 64, Dtype::bf16, Category::activations, "input");
      torch.linear_4bit(x, 0, 64, 64, {Dtype::bf16, Dtype::bf16});
    }
    return std::ranges::count_if(recording.writer.code().buffers, [](const program::Buffer& buffer) {
      return buffer.category == Category::temporaries && buffer.bytes == Bytes{8192};
    });
  };
  CHECK(dequantized(32) == 0);
  CHECK(dequantized(33) == 1);
  CHECK_THROWS_WITH_AS(dequantized(8), doctest::Contains("--method qlora with 8 tokens"), NotModelled);
}

TEST_CASE("backward dequantizes a matrix to the type that it was quantized from, and converts that") {
  Recording recording;
  {
    Torch torch(recording, kH100, 1);
    const std::vector<Tensor> matrix = torch.make_quantized(0, 4096, *quantization_named("nf4"), "weight");
    Tensor x = torch.heap().make(1024 * 64, Dtype::bf16, Category::activations, "input");
    x = torch.require_gradient(x);
    const Tensor y = torch.linear_4bit(x, 0, 64, 64, {.compute = Dtype::bf16, .original = Dtype::f32});
    torch.backward(y, [] {});
  }
  const auto count = [&](std::int64_t bytes) {
    return std::ranges::count_if(recording.writer.code().buffers, [&](const program::Buffer& buffer) {
      return buffer.category == Category::temporaries && buffer.bytes == Bytes{bytes};
    });
  };
  CHECK(count(8192) == 2);  // forward's, and the converted one
  CHECK(count(16384) == 1);
}

TEST_CASE("a checkpointed function is run again up to the last tensor that backward reads") {
  Recording recording;
  Torch torch(recording, kH100, 1);
  Tensor input = torch.heap().make(4096, Dtype::f32, Category::activations, "input");
  input.wants_gradient = true;
  int squares = 0;
  const auto body = [&](const Tensor& x) {
    ++squares;
    Tensor y = torch.silu(torch.power(x));
    return torch.add_scalar(y);  // saves nothing: not run again
  };
  const Tensor y = eager::checkpoint(torch.checkpoints(), body, input, {});
  CHECK(squares == 1);
  torch.backward(y, [] {});
  CHECK(squares == 2);
}

}  // namespace
}  // namespace vramfit
