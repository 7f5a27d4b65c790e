#include "cli/explain/log.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "cli/explain/log_lines.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

std::string example(const std::string& name) {
  return (std::filesystem::path(testing::source_dir()) / "tests/cli/explain/examples" / name).string();
}

const std::string kMessage =
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8.00 GiB of "
    "which "
    "0.50 GiB is free. Of the allocated memory 6.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch "
    "but "
    "unallocated.";

/// A traceback that ends in kMessage, `prefix` before each line.
std::string failing(const std::string& prefix, const std::string& frames) {
  std::string text, line;
  for (const char c : "Traceback (most recent call last):\n" + frames + kMessage + "\n") {
    line += c;
    if (c != '\n') continue;
    text += prefix + line;
    line.clear();
  }
  return text;
}

std::string frame(const std::string& file, const std::string& function, int line = 3) {
  return "  File \"" + file + "\", line " + std::to_string(line) + ", in " + function + "\n    code()\n";
}

const std::string kPackages = "/opt/venv/lib/python3.11/site-packages/";

LoggedFailure only(const std::string& text) {
  const testing::TemporaryDirectory place;
  const MemoryLog log = read_memory_log(place.write("job.log", text));
  REQUIRE(log.failures.size() == 1);
  return log.failures.front();
}

}  // namespace

TEST_CASE("ranks whose lines are mixed keep their own tracebacks") {
  const MemoryLog log = read_memory_log(example("ranks.log"));
  REQUIRE(log.failures.size() == 2);
  const LoggedFailure& first = log.failures[0];
  CHECK(first.rank == 0);
  CHECK(first.line == 22);
  CHECK(first.site.phase == Phase::loss);
  CHECK(place_text(*first.site.own) == "/data/sft.py:88 in <module>");
  CHECK(place_text(*first.site.library) == "transformers/loss/loss_utils.py:36 in fixed_cross_entropy");
  CHECK(place_text(*first.site.innermost) == "torch/nn/functional.py:3494 in cross_entropy");
  const LoggedFailure& second = log.failures[1];
  CHECK(second.rank == 1);
  CHECK(second.site.phase == Phase::backward);
  CHECK(second.site.recomputes);
  CHECK(second.message.processes.size() == 2);
}

TEST_CASE("a message that a terminal or a library broke into lines is read as one") {
  const MemoryLog old = read_memory_log(example("old.log"));
  REQUIRE(old.failures.size() == 1);
  CHECK(old.failures[0].message.reserved.has_value());
  CHECK(old.failures[0].site.phase == Phase::load);
  const MemoryLog rich = read_memory_log(example("rich.log"));
  REQUIRE(rich.failures.size() == 1);
  CHECK(rich.failures[0].message.total.has_value());
  CHECK(rich.failures[0].message.reserved.has_value());
  CHECK(rich.failures[0].site.phase == Phase::optimizer);
  CHECK(place_text(*rich.failures[0].site.own) == "/data/finetune.py:57 in <module>");
}

TEST_CASE("who wrote a line is read off its front") {
  const auto rank_of = [](const char* line) { return split_prefix(line).rank; };
  CHECK(rank_of("[rank12]: Traceback (most recent call last):") == 12);
  CHECK(rank_of("[default3]:Traceback (most recent call last):") == 3);
  CHECK(rank_of("[1,5]<stderr>:Traceback (most recent call last):") == 5);
  CHECK(rank_of(" 7: Traceback (most recent call last):") == std::nullopt);
  CHECK(rank_of("7: Traceback (most recent call last):") == 7);
  CHECK(rank_of("worker-0  | [rank4]:   File \"x.py\", line 1, in f") == 4);
  CHECK(rank_of("2026-11-25T10:00:00.123Z [rank2]: Traceback (most recent call last):") == 2);
  CHECK(rank_of("100: something else") == std::nullopt);
  CHECK(rank_of("99%|####| 99/100") == std::nullopt);
  CHECK(split_prefix("(RayTrainWorker pid=12, ip=10.0.0.1) CUDA out of memory.").text == "CUDA out of memory.");
}

TEST_CASE("the innermost sign in a traceback is the phase, and what backward and evaluation call is theirs") {
  const auto phase_of = [](const std::string& frames) { return phase_text(only(failing("", frames)).site); };
  const std::string main = frame("train.py", "main");
  const std::string module = frame(kPackages + "torch/nn/modules/module.py", "_call_impl");
  const std::string backward = frame(kPackages + "torch/autograd/graph.py", "_engine_run_backward");
  const std::string step = frame(kPackages + "torch/optim/adamw.py", "step");
  CHECK(phase_of(main) == "");
  CHECK(phase_of(main + module) == "forward");
  CHECK(phase_of(main + backward) == "backward");
  CHECK(phase_of(main + backward + module) == "backward (activations computed again)");
  CHECK(phase_of(main + step) == "optimizer");
  CHECK(phase_of(main + step + module) == "forward");      // a closure
  CHECK(phase_of(main + backward + step) == "optimizer");  // an update within backward
  CHECK(phase_of(main + frame(kPackages + "transformers/trainer.py", "evaluation_loop") + module) == "evaluation");
  CHECK(phase_of(main + frame(kPackages + "transformers/modeling_utils.py", "from_pretrained")) == "load");
  CHECK(phase_of(main + frame(kPackages + "torch/nn/utils/clip_grad.py", "clip_grad_norm_")) == "clip");
}

TEST_CASE("a traceback above another one is not the failure's") {
  const LoggedFailure failure = only(failing("", frame("a.py", "forward")).substr(0, 80) + "\nKeyError: 'x'\n" +
                                     failing("", frame("b.py", "main")));
  CHECK(failure.site.own->file == "b.py");
  CHECK_FALSE(failure.site.phase.has_value());
}

TEST_CASE("what is said twice is listed once, and each rank that failed") {
  const testing::TemporaryDirectory place;
  const std::string text = failing("[rank0]: ", frame("a.py", "f")) + failing("[rank0]: ", "") +
                           failing("[rank1]: ", frame("a.py", "f")) + kMessage + "\n";
  const MemoryLog log = read_memory_log(place.write("job.log", text));
  REQUIRE(log.failures.size() == 2);
  CHECK(log.failures[1].rank == 1);
}

TEST_CASE("colours, progress bars and long lines leave the message as it is") {
  const std::string bar(300000, 'x');
  const LoggedFailure failure = only("1%\r2%\r" + bar + "\n\x1b[31m" + failing("", frame("a.py", "f")) + "\x1b[0m");
  CHECK(failure.line == 5);
  CHECK(failure.message.asked == kGiB);
}

TEST_CASE("a log that is many times larger than what is kept of it is read in one pass") {
  const testing::TemporaryDirectory place;
  std::string block;
  for (int rank = 0; block.size() < (1U << 20); ++rank) {
    block += "[rank" + std::to_string(rank) + "]:" + frame(std::string(500, 'p') + ".py", "f");
  }
  const std::string path = place.write("job.log", failing("", frame("a.py", "f")));
  {
    std::ofstream file(path, std::ios::app | std::ios::binary);
    for (int i = 0; i < 24; ++i) file << block;
  }
  CHECK(read_memory_log(path).failures.size() == 1);
}

TEST_CASE("a log without a message is refused with what is missing") {
  const testing::TemporaryDirectory place;
  for (const char* const text : {"", "all went well\n", "Out of memory: Killed process 7\n"}) {
    try {
      read_memory_log(place.write("job.log", text));
      FAIL("accepted");
    } catch (const InputError& error) {
      CHECK(std::string(error.what()).find("has no out-of-memory message of PyTorch") != std::string::npos);
    }
  }
}

}  // namespace vramfit
