#include "estimator/time/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>

#include "base/json/json_writer.h"
#include "base/numbers/median.h"
#include "estimator/time/kernels.h"
#include "program/pytorch/calls/kernels.h"

namespace vramfit {

namespace {

using WorkUnit = Work::Unit;
using program::Collective;

/// The argument with the least result: the best of a grid of ratios, then of finer ones around it.
double best_value(double least, double most, const std::function<double(double)>& error) {
  constexpr int kPoints = 64, kRounds = 4;
  double best = least, best_error = error(least), low = std::log(least), high = std::log(most);
  for (int round = 0; round < kRounds; ++round) {
    const double step = (high - low) / kPoints;
    for (int i = 0; i <= kPoints; ++i) {
      const double value = std::exp(low + step * i), found = error(value);
      if (found >= best_error) continue;
      best = value;
      best_error = found;
    }
    low = std::max(std::log(least), std::log(best) - step);
    high = std::min(std::log(most), std::log(best) + step);
  }
  return best;
}

constexpr double kLeastShare = 1e-4;

class Fit {
 public:
  Fit(const Cluster& cluster, const Measurements& measured)
      : cluster_(cluster),
        measured_(measured),
        known_(efficiency_of(cluster)),
        own_(known_),
        most_share_(most_share(cluster)) {}

  Calibration made() {
    set("launch_seconds", measured_.launch_seconds, own_.launch_seconds, "200 launches");
    fit_products();
    fit_attention();
    fit_share("memory_share", own_.memory_share, [](const Work& work) { return work.unit == WorkUnit::none; });
    fit_share("eager_cast_share", own_.eager_cast_share,
              [](const Work& work) { return work.unit == WorkUnit::eager_cast; });
    fit_copies();
    fit_collectives();
    add_groups();
    say_what_is_missing();
    made_.efficiency = own_;
    return std::move(made_);
  }

 private:
  using Kernels = std::vector<const MeasuredKernel*>;
  using IsWanted = std::function<bool(const Work&)>;

  Kernels kernels_with(const IsWanted& is_wanted) const {
    Kernels kernels;
    for (const MeasuredKernel& kernel : measured_.kernels) {
      if (!kernel.work.empty() && kernel.seconds > 0 && std::ranges::all_of(kernel.work, is_wanted)) {
        kernels.push_back(&kernel);
      }
    }
    return kernels;
  }

  /// Alone, and so without step_share. Calls follow each other: the slower one of GPU and host sets the pace.
  double predicted(const MeasuredKernel& kernel, Efficiency efficiency) const {
    efficiency.step_share = efficiency.step_share_alone = 1;
    const WorkTimer timer(cluster_, efficiency);
    vramfit::Kernels sum;
    for (const Work& work : kernel.work) sum.then(timer.kernels_of(work));
    return seconds_of_ticks(std::max(sum.host, sum.compute));
  }

  double predicted(const MeasuredCollective& collective, const Efficiency& efficiency) const {
    program::Start start;
    start.collective = collective.collective;
    start.bytes = collective.bytes;
    return Rates(cluster_, efficiency).seconds(start, {.members = measured_.ranks});
  }

  template <typename Measured>
  double error_of(const std::vector<const Measured*>& all, const Efficiency& efficiency) const {
    double sum = 0;
    for (const Measured* one : all) sum += std::abs(std::log(predicted(*one, efficiency) / one->seconds));
    return sum;
  }

  template <typename Measured>
  double median_error(const std::vector<const Measured*>& all, const Efficiency& efficiency) const {
    std::vector<double> errors;
    for (const Measured* one : all) errors.push_back(predicted(*one, efficiency) / one->seconds - 1);
    return median(std::move(errors));
  }

  void set(std::string key, double value, double& figure, const std::string& of) {
    made_.figures.push_back({std::move(key), figure, value, fmt::format("measured: {} (vramfit calibrate)", of)});
    figure = value;
  }

  /// The value of `figure` with which `all` are predicted best. `figure` is left changed.
  template <typename Measured>
  double share_of(const std::vector<const Measured*>& all, double& figure) {
    return best_value(kLeastShare, most_share_, [&](double value) {
      figure = value;
      return error_of(all, own_);
    });
  }

  /// A figure by which `all` are predicted.
  template <typename Measured>
  void fit(const char* key, double& figure, const std::vector<const Measured*>& all, const char* of) {
    if (all.empty()) return;
    const double before = figure;
    const double best = share_of(all, figure);
    figure = before;
    set(key, best, figure, fmt::format("{} {}", all.size(), of));
  }

  void fit_share(const char* key, double& figure, const IsWanted& is_wanted) {
    fit(key, figure, kernels_with(is_wanted), "calls");
  }

  void fit_products() {
    const auto is_product = [](const Work& work) { return work.unit == WorkUnit::product; };
    fit_share("product_share_fp32", own_.product_share_fp32,
              [&](const Work& work) { return is_product(work) && work.dtype == Dtype::f32; });
    fit_share("product_share", own_.product_share,
              [&](const Work& work) { return is_product(work) && work.dtype != Dtype::f32; });
  }

  void fit_attention() {
    fit_attention(WorkUnit::attention, "attention", own_.attention);
    fit_attention(WorkUnit::attention_backward, "attention_backward", own_.attention_backward);
    fit_attention(WorkUnit::cudnn_attention, "cudnn_attention", own_.cudnn_attention);
    fit_attention(WorkUnit::cudnn_attention_backward, "cudnn_attention_backward", own_.cudnn_attention_backward);
  }

  bool has(WorkUnit unit) const {
    return !kernels_with([=](const Work& work) { return work.unit == unit; }).empty();
  }

  Kernels attention_kernels(WorkUnit unit, std::int64_t head_size) const {
    return kernels_with([=](const Work& work) { return work.unit == unit && work.shape.columns == head_size; });
  }

  /// The half length that fits both head sizes best, each with the share that suits it.
  void fit_attention(WorkUnit unit, const std::string& name, Efficiency::Attention& attention) {
    constexpr double kLongest = 1e4;
    const Kernels of_64 = attention_kernels(unit, 64), of_128 = attention_kernels(unit, 128);
    if (of_64.empty() || of_128.empty()) return;
    const Efficiency::Attention before = attention;
    const double half_length = best_value(1, kLongest, [&](double length) {
      attention.half_length = length;
      attention.share_64 = share_of(of_64, attention.share_64);
      attention.share_128 = share_of(of_128, attention.share_128);
      return error_of(of_64, own_) + error_of(of_128, own_);
    });
    attention.half_length = half_length;
    const double share_64 = share_of(of_64, attention.share_64), share_128 = share_of(of_128, attention.share_128);
    attention = before;
    const std::string of = fmt::format("{} calls", of_64.size() + of_128.size());
    set(name + "_share_64", share_64, attention.share_64, of);
    set(name + "_share_128", share_128, attention.share_128, of);
    set(name + "_half_length", half_length, attention.half_length, of);
  }

  static double median_bandwidth(const std::vector<MeasuredCopy>& copies) {
    std::vector<double> bandwidths;
    for (const MeasuredCopy& copy : copies) bandwidths.push_back(copy.bytes / copy.seconds);
    return median(std::move(bandwidths));
  }

  void fit_copies() {
    if (!measured_.copies.empty()) {
      set("host_link_share", median_bandwidth(measured_.copies) / cluster_.card.pcie_bandwidth, own_.host_link_share,
          fmt::format("{} copies", measured_.copies.size()));
    }
    if (!measured_.updates_on_host.empty()) {
      set("host_memory_bandwidth", median_bandwidth(measured_.updates_on_host), own_.host_memory_bandwidth,
          "AdamW updates by the CPU");
      set("host_memory_range", 1, own_.host_memory_range, "on this machine");
    }
  }

  std::vector<const MeasuredCollective*> collectives(bool sums, bool small) const {
    constexpr Bytes kSmall{64 * 1024};  // latency alone, in effect
    std::vector<const MeasuredCollective*> found;
    for (const MeasuredCollective& one : measured_.collectives) {
      const bool is_sum = one.collective == Collective::all_reduce;
      if (one.seconds > 0 && is_sum == sums && (one.bytes < kSmall) == small) found.push_back(&one);
    }
    return found;
  }

  void fit_collectives() {
    const auto small = collectives(/*sums=*/false, /*small=*/true);
    if (small.empty()) return;
    std::vector<double> latencies;
    for (const MeasuredCollective* one : small) latencies.push_back(one->seconds);
    const double steps = (measured_.ranks - 1) * own_.collective_step_seconds;
    set("collective_base_seconds", std::max(0.0, median(std::move(latencies)) - steps), own_.collective_base_seconds,
        fmt::format("{} small gathers and reduce-scatters over {} ranks", small.size(), measured_.ranks));
    fit("link_share", own_.link_share, collectives(false, false), "gathers and reduce-scatters");
    fit("link_share_all_reduce", own_.link_share_all_reduce, collectives(true, false), "sums");
  }

  template <typename Measured>
  void add_group(const std::string& name, const std::vector<const Measured*>& all) {
    if (all.empty()) return;
    made_.groups.push_back({name, all.size(), median_error(all, known_), median_error(all, own_)});
  }

  void add_groups() {
    std::vector<std::string> names;
    for (const MeasuredKernel& kernel : measured_.kernels) {
      if (std::ranges::find(names, kernel.group) == names.end()) names.push_back(kernel.group);
    }
    for (const std::string& name : names) {
      Kernels kernels;
      for (const MeasuredKernel& kernel : measured_.kernels) {
        if (kernel.group == name && kernel.seconds > 0) kernels.push_back(&kernel);
      }
      add_group(name, kernels);
    }
    for (const bool sums : {false, true}) {
      auto all = collectives(sums, true);
      const auto large = collectives(sums, false);
      all.insert(all.end(), large.begin(), large.end());
      add_group(sums ? "sums over ranks" : "gathers and reduce-scatters", all);
    }
  }

  void say_what_is_missing() {
    std::vector<std::string>& list = made_.not_measured;
    if (measured_.ranks == 1) list.emplace_back("collectives: one rank has none");
    if (cluster_.is_cpu()) {
      list.emplace_back("copies over PCIe and updates in host memory: CPU ranks have none");
    } else {
      list.emplace_back("FP8 products");
      if (!has(WorkUnit::cudnn_attention) && eager::widest_cudnn_attention(cluster_.card.device) > 0) {
        list.emplace_back("cuDNN's attention, which PyTorch prefers on this card: PyTorch refused it here");
      }
      list.emplace_back(
          "how much slower kernels are within a step than by themselves (step_share, step_share_alone): a run.json "
          "shows it");
    }
    list.emplace_back("the network between nodes: one machine is measured");
  }

  const Cluster& cluster_;
  const Measurements& measured_;
  const Efficiency& known_;
  Efficiency own_;
  double most_share_;
  Calibration made_;
};

void begin(JsonWriter& writer, const Cluster& cluster) {
  writer.begin_object().member("schema", "vramfit/calibration@1").member("name", cluster.card.name);
}

void write_figures(JsonWriter& writer, const std::vector<CalibratedFigure>& figures) {
  writer.key("figures").begin_object();
  for (const CalibratedFigure& figure : figures) {
    writer.key(figure.key).begin_array().real(figure.measured).text(figure.origin).end_array();
  }
  writer.end_object();
}

}  // namespace

std::string figures_to_json(const std::vector<CalibratedFigure>& figures, const Cluster& cluster) {
  JsonWriter writer;
  begin(writer, cluster);
  write_figures(writer, figures);
  return writer.end_object().take();
}

Calibration calibration_of(const Cluster& cluster, const Measurements& measurements) {
  return Fit(cluster, measurements).made();
}

std::string calibration_to_json(const Calibration& calibration, const Cluster& cluster, const Measurements& measured) {
  JsonWriter writer;
  begin(writer, cluster);
  writer.member("device", measured.device).member("ranks", measured.ranks).member("seconds", measured.seconds);
  write_figures(writer, calibration.figures);
  writer.key("errors").begin_object();
  for (const CalibratedGroup& group : calibration.groups) {
    writer.key(group.group).begin_object().member("measurements", static_cast<std::int64_t>(group.measurements));
    writer.member("of_known_figures", group.error_of_known).member("of_these_figures", group.error_of_measured);
    writer.end_object();
  }
  writer.end_object().member("not_measured", calibration.not_measured);
  return writer.end_object().take();
}

}  // namespace vramfit
