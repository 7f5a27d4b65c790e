// The forms of docs/time-model.md, reckoned by hand, on a card that does one unit of everything per second.
#include "estimator/time/rates.h"

#include <doctest/doctest.h>

#include "tests/support/unit_card.h"

namespace vramfit {
namespace {

using WorkUnit = Work::Unit;

struct OneCard {
  Cluster cluster = testing::unit_cluster(1, 1);  // 2 FLOPs a second in 16 bits, 1 byte
  Efficiency efficiency = testing::unit_efficiency();
  double seconds(const Work& work) const { return Rates(cluster, efficiency).seconds(work); }
};

Work product(std::int64_t rows, std::int64_t columns, std::int64_t inner, double bytes = 0) {
  const auto flops = 2 * static_cast<double>(rows * columns * inner);
  return {
      .unit = WorkUnit::product, .dtype = Dtype::bf16, .flops = flops, .bytes = bytes, .shape = {rows, columns, inner}};
}

Work attention(WorkUnit unit, std::int64_t length, std::int64_t head_size) {
  return {.unit = unit, .dtype = Dtype::bf16, .flops = 60, .shape = {.rows = length, .columns = head_size}};
}

}  // namespace

TEST_CASE("a product takes its start, and then the longer of its FLOPs at their share and of its bytes") {
  OneCard card;
  card.efficiency.product_share = 0.5;
  card.efficiency.product_start_seconds = 3;
  CHECK(card.seconds(product(2, 3, 5)) == 3 + 60);        // 60 FLOPs at 2 x 0.5 a second
  CHECK(card.seconds(product(2, 3, 5, 100)) == 3 + 100);  // bound by its bytes
  Work twice = product(2, 3, 5);
  twice.launches = 2;
  CHECK(card.seconds(twice) == 2 * 3 + 60);
}

TEST_CASE("the last wave of tiles, and tiles over an edge, cost as much as others") {
  OneCard card;
  card.cluster.card.device.sm_count = 4;
  card.efficiency.tiles = {Efficiency::Tile{2, 2}, Efficiency::Tile{2, 2}};
  CHECK(card.seconds(product(4, 4, 8)) == 128);      // 4 tiles, one wave: 256 FLOPs at 2 a second
  CHECK(card.seconds(product(4, 6, 8)) == 2 * 128);  // 6 tiles take two waves, as 8 would
  CHECK(card.seconds(product(3, 4, 8)) == 128);      // a row of tiles is half over the edge
  card.efficiency.tiles[1] = {1, 3};                 // 8 tiles of 3 in two waves: no tile is left over
  CHECK(card.seconds(product(4, 6, 8)) == 192);
  Work unknown = product(4, 6, 8);
  unknown.shape = {};
  CHECK(card.seconds(unknown) == 192);
}

TEST_CASE("products of FP8 and fp32 factors have peaks and shares of their own") {
  OneCard card;
  card.efficiency.product_share_fp8 = 0.25;
  card.efficiency.product_share_fp32 = 0.125;
  Work work = product(2, 3, 5);
  work.dtype = Dtype::f8_e4m3;
  CHECK(card.seconds(work) == 60);  // at 2 x 2 x 0.25 a second
  work.dtype = Dtype::f32;
  CHECK(card.seconds(work) == 480);  // at 1 x 0.125
}

TEST_CASE("attention reaches its share only over long sequences, and another one in backward and with large heads") {
  OneCard card;
  card.efficiency.attention = {.share_64 = 0.5, .share_128 = 1, .half_length = 100};
  card.efficiency.attention_backward = {.share_64 = 0.25, .share_128 = 0.25, .half_length = 300};
  CHECK(card.seconds(attention(WorkUnit::attention, 100, 64)) == 120);  // 60 / (2 x 0.5 x 100 / 200)
  CHECK(card.seconds(attention(WorkUnit::attention, 300, 64)) == 80);   // 60 / (2 x 0.5 x 300 / 400)
  CHECK(card.seconds(attention(WorkUnit::attention, 300, 128)) == 40);
  CHECK(card.seconds(attention(WorkUnit::attention, 300, 256)) == 40);
  CHECK(card.seconds(attention(WorkUnit::attention, 300, 32)) == 80);
  CHECK(card.seconds(attention(WorkUnit::attention, 100, 96)) == 80);            // 60 / (2 x 0.75 x 1/2)
  CHECK(card.seconds(attention(WorkUnit::attention_backward, 300, 96)) == 240);  // 60 / (2 x 0.25 x 1/2)
}

TEST_CASE("kernels in a step of a card alone have another share than beside others; CPU ranks don't") {
  Efficiency efficiency = testing::unit_efficiency();
  efficiency.step_share = 0.25;
  efficiency.step_share_alone = 0.5;
  Cluster cpu = testing::unit_cluster(1, 1);
  cpu.card.device.kind = DeviceKind::cpu;
  const Work pass{.bytes = 10};
  CHECK(Rates(testing::unit_cluster(1, 1), efficiency).seconds(pass) == 20);
  CHECK(Rates(testing::unit_cluster(1, 2), efficiency).seconds(pass) == 40);
  CHECK(Rates(testing::unit_cluster(2, 1), efficiency).seconds(pass) == 40);
  CHECK(Rates(cpu, efficiency).seconds(pass) == 40);
}

TEST_CASE("cuDNN's attention has shares of its own") {
  OneCard card;
  card.efficiency.cudnn_attention = {.share_64 = 0.25, .share_128 = 0.75, .half_length = 100};
  card.efficiency.cudnn_attention_backward = {.share_64 = 0.125, .share_128 = 0.125, .half_length = 300};
  CHECK(card.seconds(attention(WorkUnit::cudnn_attention, 100, 64)) == 240);  // 60 / (2 x 0.25 x 100 / 200)
  CHECK(card.seconds(attention(WorkUnit::cudnn_attention, 300, 128)) == doctest::Approx(60 / (2 * 0.75 * 0.75)));
  CHECK(card.seconds(attention(WorkUnit::cudnn_attention_backward, 300, 64)) == 480);
  CHECK(card.seconds(attention(WorkUnit::attention, 300, 64)) == 60);  // the unit card's half
}

TEST_CASE("passes over memory take a start each, and casts have a share of their own") {
  OneCard card;
  card.efficiency.memory_share = 0.5;
  card.efficiency.cast_share = 0.25;
  card.efficiency.memory_start_seconds = 2;
  CHECK(card.seconds({.launches = 3, .bytes = 10}) == 3 * 2 + 20);
  card.efficiency.eager_cast_share = 0.125;
  CHECK(card.seconds({.unit = WorkUnit::cast, .launches = 3, .bytes = 10}) == 3 * 2 + 40);
  CHECK(card.seconds({.unit = WorkUnit::eager_cast, .launches = 3, .bytes = 10}) == 3 * 2 + 80);
  CHECK(card.seconds({.launches = 0, .bytes = 0}) == 0);
}

TEST_CASE("an exchange sends what is for other nodes by each member's own rail, where a ring uses all members'") {
  using program::Collective;
  OneCard card;
  const auto seconds = [&](Collective collective, std::int64_t nodes, std::int64_t members, std::int64_t stride) {
    const Cluster cluster = testing::unit_cluster(nodes, 8);  // a rail moves 0.25 bytes a second
    const program::Start start{.collective = collective, .accesses = {}, .bytes = Bytes{32}};
    return Rates(cluster, card.efficiency).seconds(start, {.members = members, .stride = stride});
  };
  CHECK(seconds(Collective::all_to_all, 4, 32, 1) == doctest::Approx(24 / 0.25));  // 24 of its 32 parts
  CHECK(seconds(Collective::reduce_scatter, 4, 32, 1) == doctest::Approx(31));     // at 8 rails, more than the link
  CHECK(seconds(Collective::all_to_all, 4, 4, 8) == doctest::Approx(24 / 0.25));   // one member on each node
  CHECK(seconds(Collective::reduce_scatter, 4, 4, 8) == doctest::Approx(24 / 0.25));
  CHECK(seconds(Collective::all_to_all, 1, 8, 1) == doctest::Approx(28));
  CHECK(seconds(Collective::reduce_scatter, 1, 8, 1) == doctest::Approx(28));
}

}  // namespace vramfit
