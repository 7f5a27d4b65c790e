#include "estimator/time/calibration.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "estimator/time/kernels.h"

namespace vramfit {
namespace {

using program::Collective;

/// A machine that is other than what is known of its kind.
Efficiency other_than(Efficiency known) {
  known.product_share = 0.61;
  known.product_share_fp32 = 0.37;
  known.attention = {.share_64 = 0.21, .share_128 = 0.34, .half_length = 77};
  known.attention_backward = {.share_64 = 0.17, .share_128 = 0.29, .half_length = 410};
  known.cudnn_attention = {.share_64 = 0.41, .share_128 = 0.58, .half_length = 350};
  known.cudnn_attention_backward = {.share_64 = 0.33, .share_128 = 0.47, .half_length = 900};
  known.memory_share = 0.55;
  known.eager_cast_share = 0.45;
  known.launch_seconds = 3e-6;
  known.host_link_share = 0.44;
  known.host_memory_bandwidth = 23e9;
  known.link_share = 0.33;
  known.link_share_all_reduce = 0.66;
  known.collective_base_seconds = 5e-5;
  return known;
}

/// What a stopwatch would say of kernels on a machine with these figures.
class Machine {
 public:
  Machine(const Cluster& cluster, const Efficiency& efficiency) : cluster_(cluster), efficiency_(efficiency) {
    efficiency_.step_share = efficiency_.step_share_alone = 1;  // kernels alone
  }

  Measurements measured() const {
    Measurements found;
    found.device = "a card";
    found.ranks = static_cast<int>(cluster_.cards_per_node);
    found.seconds = 1;
    found.launch_seconds = efficiency_.launch_seconds;
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      for (const double size : {1024.0, 2048.0, 4096.0}) add(found, "products", product(dtype, size));
    }
    using Unit = Work::Unit;
    for (const auto unit :
         {Unit::attention, Unit::attention_backward, Unit::cudnn_attention, Unit::cudnn_attention_backward}) {
      for (const std::int64_t head : {64, 128}) {
        for (const std::int64_t length : {512, 2048, 8192}) add(found, "attention", attention(unit, length, head));
      }
    }
    add(found, "norms", {.bytes = 1e9});
    add(found, "casts", {.unit = Unit::eager_cast, .bytes = 1e9});
    if (!cluster_.is_cpu()) add_copies(found);
    if (found.ranks > 1) add_collectives(found);
    return found;
  }

 private:
  static Work product(Dtype dtype, double size) {
    const auto whole = static_cast<std::int64_t>(size);
    return {.unit = Work::Unit::product,
            .dtype = dtype,
            .flops = 2 * size * size * size,
            .bytes = 12 * size * size,
            .shape = {whole, whole, whole}};
  }

  static Work attention(Work::Unit unit, std::int64_t length, std::int64_t head) {
    const auto positions = static_cast<double>(length);
    return {.unit = unit,
            .dtype = Dtype::bf16,
            .flops = 4 * positions * positions * 32 * static_cast<double>(head),
            .bytes = positions,
            .shape = {length, head}};
  }

  void add(Measurements& found, const std::string& group, const Work& work) const {
    const Kernels kernels = WorkTimer(cluster_, efficiency_).kernels_of(work);
    found.kernels.push_back({group, {work}, seconds_of_ticks(std::max(kernels.host, kernels.compute))});
  }

  void add_copies(Measurements& found) const {
    found.copies = {{"copies", 1e9, 1e9 / (cluster_.card.pcie_bandwidth * efficiency_.host_link_share)}};
    found.updates_on_host = {{"updates", 1e9, 1e9 / efficiency_.host_memory_bandwidth}};
  }

  void add_collectives(Measurements& found) const {
    for (const Collective collective : {Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce}) {
      for (const std::int64_t bytes : {1, 1 << 24, 1 << 28}) {
        program::Start start;
        start.collective = collective;
        start.bytes = {bytes};
        found.collectives.push_back(
            {collective, {bytes}, Rates(cluster_, efficiency_).seconds(start, {.members = found.ranks})});
      }
    }
  }

  const Cluster& cluster_;
  Efficiency efficiency_;
};

Calibration calibrated(const std::string& gpus) {
  const Cluster cluster = parse_cluster(gpus);
  return calibration_of(cluster, Machine(cluster, other_than(efficiency_of(cluster))).measured());
}

bool has_figure(const Calibration& calibration, std::string_view key) {
  return std::ranges::find(calibration.figures, key, &CalibratedFigure::key) != calibration.figures.end();
}

bool says(const Calibration& calibration, const std::string& words) {
  return std::ranges::any_of(calibration.not_measured,
                             [&](const std::string& line) { return line.find(words) != std::string::npos; });
}

doctest::Approx about(double value) { return doctest::Approx(value).epsilon(0.01); }

}  // namespace

TEST_CASE("measurements of a machine give the figures that it has") {
  const Efficiency found = calibrated("4xH100-80GB").efficiency;
  const Efficiency truth = other_than(found);
  CHECK(found.launch_seconds == truth.launch_seconds);
  CHECK(found.product_share == about(truth.product_share));
  CHECK(found.product_share_fp32 == about(truth.product_share_fp32));
  CHECK(found.attention.share_64 == about(truth.attention.share_64));
  CHECK(found.attention.share_128 == about(truth.attention.share_128));
  CHECK(found.attention_backward.share_64 == about(truth.attention_backward.share_64));
  CHECK(found.attention_backward.half_length == doctest::Approx(truth.attention_backward.half_length).epsilon(0.05));
  CHECK(found.cudnn_attention.share_64 == about(truth.cudnn_attention.share_64));
  CHECK(found.cudnn_attention.share_128 == about(truth.cudnn_attention.share_128));
  CHECK(found.cudnn_attention_backward.share_128 == about(truth.cudnn_attention_backward.share_128));
  CHECK(found.memory_share == about(truth.memory_share));
  CHECK(found.eager_cast_share == about(truth.eager_cast_share));
  CHECK(found.host_link_share == about(truth.host_link_share));
  CHECK(found.host_memory_bandwidth == about(truth.host_memory_bandwidth));
  CHECK(found.link_share == about(truth.link_share));
  CHECK(found.link_share_all_reduce == about(truth.link_share_all_reduce));
  CHECK(found.collective_base_seconds == about(truth.collective_base_seconds));
}

TEST_CASE("errors before and after are those of the predictions") {
  const Calibration calibration = calibrated("4xH100-80GB");
  const auto group = std::ranges::find(calibration.groups, "norms", &CalibratedGroup::group);
  REQUIRE(group != calibration.groups.end());
  CHECK(group->error_of_known < -0.2);  // a slower machine than is known
  CHECK(group->error_of_measured == doctest::Approx(0).epsilon(0.01));
}

TEST_CASE("what a machine lacks isn't measured, and is said") {
  const Calibration one = calibrated("1xH100-80GB"), cpu = calibrated("2xcpu-4GiB");
  CHECK_FALSE(has_figure(one, "link_share"));
  CHECK(says(one, "one rank has none"));
  CHECK(has_figure(one, "host_link_share"));
  CHECK(has_figure(cpu, "link_share"));
  CHECK_FALSE(has_figure(cpu, "host_link_share"));
  CHECK(says(cpu, "PCIe"));
}

TEST_CASE("the file that is written is read back as the same figures") {
  const Cluster cluster = parse_cluster("4xH100-80GB");
  const Efficiency& known = efficiency_of(cluster);
  const Measurements measured = Machine(cluster, other_than(known)).measured();
  const Calibration calibration = calibration_of(cluster, measured);
  const std::string text = calibration_to_json(calibration, cluster, measured);
  const Efficiency read = calibrated_efficiency(cluster, known, text, "mine.json");
  CHECK(read.product_share == calibration.efficiency.product_share);
  CHECK(read.attention_backward.half_length == calibration.efficiency.attention_backward.half_length);
  CHECK(read.link_share == calibration.efficiency.link_share);
  CHECK(read.step_share == known.step_share);
  CHECK(read.host_memory_range == 1);
  for (const CalibratedFigure& figure : calibration.figures) CHECK(figure.origin.starts_with("measured: "));
}

TEST_CASE("measurements survive their file, and a damaged one is refused by key") {
  const Cluster cluster = parse_cluster("2xH100-80GB");
  const std::string text = measurements_to_json(Machine(cluster, efficiency_of(cluster)).measured());
  CHECK(measurements_to_json(measurements_from_json(text, "m.json")) == text);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return changed;
  };
  CHECK_THROWS_AS((void)measurements_from_json(with("\"ranks\": 2", "\"ranks\": 0"), "m.json"), InputError);
  CHECK_THROWS_AS((void)measurements_from_json(with("\"product\"", "\"produce\""), "m.json"), InputError);
  CHECK_THROWS_AS((void)measurements_from_json(with("all_reduce", "all_reduced"), "m.json"), InputError);
}

}  // namespace vramfit
