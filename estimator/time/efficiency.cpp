#include "estimator/time/efficiency.h"

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/numbers/sourced_figure.h"
#include "estimator/time/efficiency_json.h"

namespace vramfit {

namespace {

/// A share may be above one: boost clocks go beyond the catalog's peaks, and switches that add beyond a ring's limit.
constexpr double kMostShare = 2;
/// Peaks of CPU ranks are assumptions (docs/time-model.md).
constexpr double kMostShareOfAssumed = 1000;

struct Row {
  std::string_view key;
  double& (*of)(Efficiency&);
  double least, most;
  bool is_share = false;  // whose most depends on the cluster
};

using Member = double& (*)(Efficiency&);
constexpr Row share(std::string_view key, Member of) { return {key, of, 1e-6, kMostShare, true}; }
constexpr Row seconds(std::string_view key, Member of) { return {key, of, 0, 1}; }
constexpr Row size(std::string_view key, Member of) { return {key, of, 1, 1e6}; }
constexpr Row bandwidth(std::string_view key, Member of) { return {key, of, 1e6, 1e14}; }

constexpr std::array kRows{
    share("product_share", [](Efficiency& e) -> double& { return e.product_share; }),
    share("product_share_fp32", [](Efficiency& e) -> double& { return e.product_share_fp32; }),
    share("product_share_fp8", [](Efficiency& e) -> double& { return e.product_share_fp8; }),
    seconds("product_start_seconds", [](Efficiency& e) -> double& { return e.product_start_seconds; }),
    size("tile_1_rows", [](Efficiency& e) -> double& { return e.tiles[0].rows; }),
    size("tile_1_columns", [](Efficiency& e) -> double& { return e.tiles[0].columns; }),
    size("tile_2_rows", [](Efficiency& e) -> double& { return e.tiles[1].rows; }),
    size("tile_2_columns", [](Efficiency& e) -> double& { return e.tiles[1].columns; }),
    share("fp8_speedup", [](Efficiency& e) -> double& { return e.fp8_speedup; }),
    share("converted_bf16", [](Efficiency& e) -> double& { return e.converted_bf16; }),
    share("attention_share_64", [](Efficiency& e) -> double& { return e.attention.share_64; }),
    share("attention_share_128", [](Efficiency& e) -> double& { return e.attention.share_128; }),
    size("attention_half_length", [](Efficiency& e) -> double& { return e.attention.half_length; }),
    share("attention_backward_share_64", [](Efficiency& e) -> double& { return e.attention_backward.share_64; }),
    share("attention_backward_share_128", [](Efficiency& e) -> double& { return e.attention_backward.share_128; }),
    size("attention_backward_half_length", [](Efficiency& e) -> double& { return e.attention_backward.half_length; }),
    share("cudnn_attention_share_64", [](Efficiency& e) -> double& { return e.cudnn_attention.share_64; }),
    share("cudnn_attention_share_128", [](Efficiency& e) -> double& { return e.cudnn_attention.share_128; }),
    size("cudnn_attention_half_length", [](Efficiency& e) -> double& { return e.cudnn_attention.half_length; }),
    share("cudnn_attention_backward_share_64",
          [](Efficiency& e) -> double& { return e.cudnn_attention_backward.share_64; }),
    share("cudnn_attention_backward_share_128",
          [](Efficiency& e) -> double& { return e.cudnn_attention_backward.share_128; }),
    size("cudnn_attention_backward_half_length",
         [](Efficiency& e) -> double& { return e.cudnn_attention_backward.half_length; }),
    share("memory_share", [](Efficiency& e) -> double& { return e.memory_share; }),
    share("cast_share", [](Efficiency& e) -> double& { return e.cast_share; }),
    share("eager_cast_share", [](Efficiency& e) -> double& { return e.eager_cast_share; }),
    seconds("memory_start_seconds", [](Efficiency& e) -> double& { return e.memory_start_seconds; }),
    share("host_link_share", [](Efficiency& e) -> double& { return e.host_link_share; }),
    bandwidth("host_memory_bandwidth", [](Efficiency& e) -> double& { return e.host_memory_bandwidth; }),
    size("host_memory_range", [](Efficiency& e) -> double& { return e.host_memory_range; }),
    share("link_share", [](Efficiency& e) -> double& { return e.link_share; }),
    share("link_share_all_reduce", [](Efficiency& e) -> double& { return e.link_share_all_reduce; }),
    share("network_share", [](Efficiency& e) -> double& { return e.network_share; }),
    seconds("collective_base_seconds", [](Efficiency& e) -> double& { return e.collective_base_seconds; }),
    seconds("collective_step_seconds", [](Efficiency& e) -> double& { return e.collective_step_seconds; }),
    seconds("network_step_seconds", [](Efficiency& e) -> double& { return e.network_step_seconds; }),
    share("step_share", [](Efficiency& e) -> double& { return e.step_share; }),
    share("step_share_alone", [](Efficiency& e) -> double& { return e.step_share_alone; }),
    share("step_least", [](Efficiency& e) -> double& { return e.step_least; }),
    share("step_most", [](Efficiency& e) -> double& { return e.step_most; }),
    seconds("launch_seconds", [](Efficiency& e) -> double& { return e.launch_seconds; }),
    seconds("eager_call_seconds", [](Efficiency& e) -> double& { return e.eager_call_seconds; }),
};

const EfficiencyFile* find(const std::vector<EfficiencyFile>& files, std::string_view name) {
  const auto found = std::ranges::find(files, name, &EfficiencyFile::name);
  return found == files.end() ? nullptr : &*found;
}

constexpr std::array<std::string_view, 4> kOrigins{"measured", "published", "fitted", "assumed"};

/// Leaves rows alone that `is_set` names.
void read(const JsonValue& figures, const std::string& where, Efficiency& efficiency, std::vector<bool>& is_set,
          double most_share = kMostShare) {
  if (figures.kind != JsonValue::Kind::object) throw InputError(where + ": figures: is not an object");
  for (std::size_t i = 0; i < figures.keys.size(); ++i) {
    const std::string& key = figures.keys[i];
    const auto row = std::ranges::find(kRows, key, &Row::key);
    if (row == kRows.end()) throw InputError(where + ": " + key + ": unknown figure");
    const std::vector<JsonValue>& pair = figures.items[i].items;
    if (pair.size() != 2 || pair[1].text.empty()) throw InputError(where + ": " + key + ": is not [number, origin]");
    const double value = pair[0].real;
    const double most = row->is_share ? most_share : row->most;
    if (!(value >= row->least && value <= most)) throw InputError(where + ": " + key + ": is out of range");
    const auto index = static_cast<std::size_t>(row - kRows.begin());
    if (is_set[index]) continue;  // by a file that comes before
    row->of(efficiency) = value;
    set_figure(efficiency, {.name = key, .value = value, .origin = pair[1].text});
    is_set[index] = true;
  }
}

/// Gives a figure that a calibration leaves out the value that follows from another one in it.
void follow(Efficiency& efficiency, const std::vector<bool>& is_set, std::string_view from, std::string_view key,
            const std::function<double(double)>& value) {
  const auto index = [](std::string_view name) {
    return static_cast<std::size_t>(std::ranges::find(kRows, name, &Row::key) - kRows.begin());
  };
  if (!is_set[index(from)] || is_set[index(key)]) return;
  const Figure known = *std::ranges::find(efficiency.figures, from, &Figure::name);
  double& figure = kRows.at(index(key)).of(efficiency);
  figure = value(known.value);
  set_figure(efficiency, {.name = std::string(key), .value = figure, .origin = known.origin});
}

/// The file for a card: its own, or the one of the highest compute capability that it reaches.
std::string file_of(const Card& card) {
  if (card.device.kind == DeviceKind::cpu) return "cpu";
  if (find(kEfficiencyFiles, card.name) != nullptr) return card.name;
  for (int major = card.device.compute_capability / 10; major > 0; --major) {
    std::string name = "capability-" + std::to_string(major);
    if (find(kEfficiencyFiles, name) != nullptr) return name;
  }
  return "gpu";
}

}  // namespace

StepShare step_share_on(const Cluster& cluster) {
  if (cluster.cards() > 1 || cluster.is_cpu()) return {"step_share", &Efficiency::step_share};
  return {"step_share_alone", &Efficiency::step_share_alone};
}

void set_figure(Efficiency& efficiency, Figure figure) {
  const auto known = std::ranges::find(efficiency.figures, figure.name, &Figure::name);
  if (known != efficiency.figures.end()) {
    *known = std::move(figure);
  } else {
    efficiency.figures.push_back(std::move(figure));
  }
}

std::string origins_text(const Efficiency& efficiency) {
  std::vector<std::pair<std::int64_t, std::string_view>> counts;
  for (const std::string_view origin : kOrigins) {
    const std::int64_t count = std::ranges::count_if(
        efficiency.figures, [&](const Figure& figure) { return figure.origin.starts_with(origin); });
    if (count > 0) counts.emplace_back(count, origin);
  }
  std::ranges::stable_sort(counts, std::greater{}, &std::pair<std::int64_t, std::string_view>::first);
  std::string text;
  for (const auto& [count, origin] : counts) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, origin);
  return text;
}

Efficiency read_efficiency(const std::vector<EfficiencyFile>& files, const std::string& name) {
  Efficiency efficiency;
  std::vector<bool> is_set(kRows.size());
  std::string next = name;
  for (std::size_t read_files = 0; !next.empty(); ++read_files) {
    const std::string where = "efficiency/" + next + ".json";
    const EfficiencyFile* file = find(files, next);
    if (file == nullptr) throw InputError(where + ": there is no such file");
    if (read_files == files.size()) throw InputError(where + ": inherits itself");
    const JsonValue document = parse_json(file->text, where);
    read(json_member(document, "figures", where), where, efficiency, is_set);
    const auto inherits = std::ranges::find(document.keys, "inherits");
    next = inherits == document.keys.end() ? "" : json_member(document, "inherits", where).text;
  }
  const auto missing = std::ranges::find(is_set, false);
  if (missing != is_set.end()) {
    const Row& row = kRows[static_cast<std::size_t>(missing - is_set.begin())];
    throw InputError("efficiency/" + name + ".json: " + std::string(row.key) + ": missing");
  }
  return efficiency;
}

Efficiency calibrated_efficiency(const Cluster& cluster, Efficiency efficiency, std::string_view text,
                                 const std::string& file) {
  const JsonValue document = parse_json(text, file);
  std::vector<bool> is_set(kRows.size());
  read(json_member(document, "figures", file), file, efficiency, is_set, most_share(cluster));
  follow(efficiency, is_set, "step_share", "step_share_alone", [](double share) { return share; });
  follow(efficiency, is_set, "host_memory_bandwidth", "host_memory_range", [](double) { return 1.0; });
  return efficiency;
}

double most_share(const Cluster& cluster) { return cluster.is_cpu() ? kMostShareOfAssumed : kMostShare; }

const Efficiency& efficiency_of(const Cluster& cluster) {
  static std::mutex mutex;
  static std::map<std::string, Efficiency> known;  // by card
  const std::scoped_lock lock(mutex);
  const auto found = known.find(cluster.card.name);
  if (found != known.end()) return found->second;
  return known.emplace(cluster.card.name, read_efficiency(kEfficiencyFiles, file_of(cluster.card))).first->second;
}

}  // namespace vramfit
