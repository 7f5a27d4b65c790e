// What a walk of PyTorch's code is written down with: lists of accesses, shares of nodes, and recordings without calls.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "job/stacks/stacks.h"
#include "program/make_program.h"
#include "program/pytorch/walk/accesses.h"
#include "program/pytorch/walk/shared.h"
#include "program/readers/bytes.h"
#include "program/readers/host_bytes.h"
#include "program/stages/adapters.h"
#include "tests/support/models.h"

namespace vramfit {
namespace {

using eager::Accesses;
using eager::Shared;

std::vector<int> buffers_of(const Accesses& accesses) {
  std::vector<int> buffers;
  for (const program::Access& access : accesses) buffers.push_back(access.buffer);
  return buffers;
}

TEST_CASE("a list of accesses has them in order, however many there are") {
  std::vector<int> expected;
  Accesses accesses;
  for (int buffer = 0; buffer < 20; ++buffer) {
    CHECK(buffers_of(accesses) == expected);
    CHECK(accesses.size() == expected.size());
    accesses.push_back({.buffer = buffer});
    expected.push_back(buffer);
    const Accesses copy = accesses;
    CHECK(buffers_of(copy) == expected);
  }
  Accesses others{{.buffer = 30}, {.buffer = 31}};
  others.append(accesses);
  CHECK(others.size() == 22);
  CHECK(others.front().buffer == 30);
  CHECK(buffers_of(others).back() == 19);
}

/// Counts those that live.
struct Counted {
  explicit Counted(int& alive) : alive_(&alive) { ++alive; }
  Counted(Counted&& other) noexcept : alive_(std::exchange(other.alive_, nullptr)) {}
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  Counted& operator=(Counted&&) = delete;
  ~Counted() {
    if (alive_ != nullptr) --*alive_;
  }

 private:
  int* alive_;
};

TEST_CASE("what is shared ends with its last share") {
  int alive = 0;
  auto one = Shared<Counted>::make(Counted(alive));
  Shared<Counted> two = one, three;
  CHECK(alive == 1);
  CHECK(one.get() == two.get());
  CHECK(three == nullptr);
  three = std::move(one);
  one = nullptr;
  two = Shared<Counted>::make(Counted(alive));
  CHECK(alive == 2);
  const Shared<Counted>& same = three;
  three = same;
  CHECK(alive == 2);
  three.reset();
  CHECK(alive == 1);
  two = three;
  CHECK(alive == 0);
}

struct Link {
  Shared<Link> next;
};

TEST_CASE("a share that is part of what ends by its assignment is still there") {
  auto first = Shared<Link>::make(Link{.next = Shared<Link>::make(Link{.next = nullptr})});
  const Link* const second = first->next.get();
  first = std::move(first->next);
  CHECK(first.get() == second);
  CHECK(first->next == nullptr);
}

/// What a ledger has of an event, as numbers.
std::vector<std::array<std::int64_t, 5>> numbers_of(const Ledger& ledger) {
  std::vector<std::array<std::int64_t, 5>> numbers;
  for (const Event& e : ledger.events) {
    numbers.push_back(
        {e.bytes, e.id, e.label, static_cast<std::int64_t>(e.phase), static_cast<std::int64_t>(e.stream)});
  }
  return numbers;
}

TEST_CASE("a recording without calls allocates the same") {
  struct Case {
    const char *stack, *cards, *offload;
  };
  for (const Case& each : {Case{"transformers", "1xH100-80GB", "none"}, Case{"transformers", "4xH100-80GB", "params"},
                           Case{"trl", "1xH100-80GB", "none"}, Case{"deepspeed", "4xH100-80GB", "none"},
                           Case{"deepspeed", "4xH100-80GB", "optimizer"}, Case{"torchtune", "4xH100-80GB", "none"},
                           Case{"torchtitan", "4xH100-80GB", "none"}}) {
    CAPTURE(std::string(each.stack));
    CAPTURE(std::string(each.offload));
    const Cluster cluster = parse_cluster(each.cards);
    Job job = on_stack(unresolved_job(), defaults_of(stack_named(each.stack), cluster));
    job_field_named("offload").set(job, each.offload);
    std::vector<std::string> notes;
    job = resolve_job(job, testing::small_llama(), cluster, notes);
    const Graph graph = training_graph(testing::small_llama(), job);
    const auto made = [&](bool calls) {
      return program::make_program(
          {.graph = graph, .job = job, .device = cluster.card.device, .coords = {}, .labels = false, .calls = calls});
    };
    const program::Program all = made(true), without = made(false);
    CHECK(numbers_of(ledger_of(without, {})) == numbers_of(ledger_of(all, {})));
    CHECK(host_bytes(without) == host_bytes(all));
    CHECK(std::ranges::none_of(without.main.instructions,
                               [](const auto& what) { return std::holds_alternative<program::Run>(what); }));
  }
}

}  // namespace
}  // namespace vramfit
