#include "program/lowering/views.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "job/cluster/cluster.h"
#include "program/lowering/lower.h"
#include "program/readers/check.h"
#include "program/readers/program_text.h"
#include "program/stages/units_layout.h"
#include "tests/support/hand_program.h"
#include "tests/support/models.h"
#include "tests/support/tiny_graph.h"

namespace vramfit::program {

TEST_CASE("lists of views are kept once, and not at all where nobody reads them") {
  Views views;
  const std::vector<View> two{list_view(0, 5, Dtype::f32), list_view(8, 3, Dtype::f32)};
  const int first = views.number(two);
  CHECK(views.number(list_view(0, 5, Dtype::f32)) != first);  // alone, it is a list of its own
  CHECK(views.number(two) == first);
  CHECK(views.number(list_view(0, 5, Dtype::bf16)) != views.number(list_view(0, 5, Dtype::f32)));
  const std::vector<View> all = views.take();
  CHECK(all[static_cast<std::size_t>(first)].parts == 2);
  CHECK(all.size() == 4);
  Views none(false);
  CHECK(none.number(two) == -1);
  CHECK(none.take().empty());
}

TEST_CASE("slices of a packed matrix are its rows, or its columns where the weight is transposed") {
  const std::vector<std::int64_t> sizes{6, 4};
  const ParameterUse middle{.parameter = 0, .first = 2, .count = 2};
  const View rows = used_view(sizes, middle, false, Dtype::f32, 7);
  CHECK(rows == View{.offset = 8, .rows = 2, .columns = 4, .pitch = 4, .base = 7});
  CHECK(reach(rows) == 8);
  const View columns = used_view(sizes, middle, true, Dtype::f32, 7);
  CHECK(columns == View{.offset = 2, .rows = 6, .columns = 2, .pitch = 4, .base = 7});
  CHECK(reach(columns) == 22);
  const std::vector<std::int64_t> bias{6};
  CHECK(used_view(bias, middle, true, Dtype::f32, 7) == View{.offset = 2, .rows = 2, .base = 7});
  const std::vector<std::int64_t> three{2, 3, 4};
  CHECK_THROWS_AS(whole_view(three, Dtype::f32), std::logic_error);
}

TEST_CASE("layers of one unit share their blocks, and calls say where their parameters begin") {
  const Device cpu{.kind = DeviceKind::cpu, .name = "cpu"};
  const auto lowered = [&](int layers, const Wrap& wrap) {
    const Graph graph = testing::tiny_graph({.blocks = layers});
    Job job = testing::tiny_job();
    job.wrap = wrap;
    job.mesh.shard = 2;
    return lower({.graph = graph, .job = job, .device = cpu, .coords = {.shard = 1}});
  };
  for (const Wrap& wrap : {Wrap{WrapNothing{}}, Wrap{WrapGroups{2}}, Wrap{WrapGroups{4}}}) {
    const Program few = lowered(3, wrap), many = lowered(14, wrap);
    CHECK(few.blocks.size() == many.blocks.size());
    CHECK(many.main.offsets.size() > few.main.offsets.size());
    CHECK(fault_of(many).value_or("") == "");
    CHECK(program_text(many).find("at p0 + 0") != std::string::npos);
  }
}

TEST_CASE("units of a matrix and of one that lies the other way have views of codes of their own") {
  ModelSpec narrow = testing::llama_8b();
  narrow.num_attention_heads /= 2;  // so that heads together are narrower than the model
  using Names = std::vector<std::string>;
  for (const auto& [spec, wrapped, offload] :
       {std::tuple{testing::llama_8b(), Names{"*up_proj", "*down_proj"}, "optimizer"},
        std::tuple{narrow, Names{"*q_proj", "*o_proj"}, "optimizer"},
        std::tuple{narrow, Names{"*q_proj", "*o_proj"}, "params"}, std::tuple{narrow, Names{}, "params"}}) {
    CAPTURE(wrapped.size());
    CAPTURE(offload);
    const Graph graph = build_graph(spec, {});
    Job job = testing::tiny_job();
    if (!wrapped.empty()) job.wrap = WrapByPattern{wrapped};
    job.precision = precision_named("bf16-pure");
    job.quantization = "fp8";
    job.offload = {offload};
    const Program program =
        lower({.graph = graph, .job = job, .device = parse_cluster("1xH100-80GB").card.device, .coords = {}});
    CHECK(fault_of(program).value_or("") == "");
    const std::vector<vramfit::Unit> units = lay_out_units(graph, job).units;
    std::set<std::int64_t> sizes;
    for (const Instruction& instruction : program.main.instructions) {
      const auto* const run = std::get_if<Run>(&instruction);
      if (run == nullptr || run->kernel != Kernel::copy || run->unit < 0) continue;
      const Access& access = program.main.accesses[run->accesses.first];
      if (access.view < 0) continue;
      const View& view = program.views[static_cast<std::size_t>(access.view)];
      if (view.dtype != Dtype::u8) continue;
      CHECK(reach(view) == units[static_cast<std::size_t>(run->unit)].codes_bytes);
      sizes.insert(reach(view));
    }
    CHECK(sizes.size() >= std::max<std::size_t>(wrapped.size(), 1));
  }
}

TEST_CASE("the host reads what was written") {
  const auto program = [](bool writes) {
    testing::HandProgram p;
    const int loss = p.buffer("loss", 4);
    p.allocate(loss);
    if (writes) p.run("sum", {{loss, How::write}}, 1.0);
    p.begin(Section::Kind::last).begin(Section::Kind::update);
    Program made = p.take();
    made.main.instructions.emplace_back(HostRead{loss});
    made.sections.back().end = made.main.instructions.size();
    return made;
  };
  CHECK(fault_of(program(true)).value_or("") == "");
  CHECK(fault_of(program(false)).value_or("") == "the host: reads loss, which nothing has written");
  CHECK(program_text(program(true)).find("read loss to the host") != std::string::npos);
}

}  // namespace vramfit::program
