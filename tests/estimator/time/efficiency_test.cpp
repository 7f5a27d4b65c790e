#include "estimator/time/efficiency.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include "base/error.h"
#include "estimator/time/efficiency_json.h"

namespace vramfit {
namespace {

std::string message(const std::vector<EfficiencyFile>& files, const std::string& name) {
  try {
    (void)read_efficiency(files, name);
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string figures(const std::string& text) { return "{\"figures\": {" + text + "}}"; }

Cluster cluster_of(const std::string& card) { return parse_cluster("1x" + card); }

}  // namespace

TEST_CASE("every file of configs/efficiency is read in full") {
  CHECK(kEfficiencyFiles.size() > 10);
  for (const EfficiencyFile& file : kEfficiencyFiles) CHECK(message(kEfficiencyFiles, std::string(file.name)).empty());
}

TEST_CASE(
    "every card of the catalog has figures: its own before those of its compute capability, and these before all") {
  for (const Card& card : card_catalog()) CHECK(efficiency_of(cluster_of(card.name)).product_share > 0.3);
  const Efficiency &h100 = efficiency_of(cluster_of("H100-80GB")), &b200 = efficiency_of(cluster_of("B200-192GB"));
  CHECK(h100.attention.share_128 < 0.5);  // FlashAttention-2 on compute capability 9.0
  CHECK(b200.attention.share_128 < h100.attention.share_128);
  CHECK(h100.link_share_all_reduce > h100.link_share);  // switches add
  CHECK(efficiency_of(cluster_of("A100-80GB")).launch_seconds == h100.launch_seconds);
  CHECK(efficiency_of(parse_cluster("2xcpu-4GiB")).collective_step_seconds == 0);
}

TEST_CASE("a file's own figures come before those that it inherits, and an error says where it is") {
  std::string all;
  for (const EfficiencyFile& file : kEfficiencyFiles) {
    if (file.name == "gpu") all = file.text;
  }
  const std::string own = R"({"inherits": "gpu", "figures": {"memory_share": [0.125, "here"]}})";
  const auto with = [&](const std::string& text) { return message({{"gpu", all}, {"card", text}}, "card"); };
  CHECK(read_efficiency({{"gpu", all}, {"card", own}}, "card").memory_share == 0.125);
  CHECK(with(R"({"inherits": "gpu", "figures": {"memory_share": [0.5]}})") ==
        "efficiency/card.json: memory_share: is not [number, origin]");
  CHECK(with(R"({"inherits": "gpu", "figures": {"memory_share": [3, "a"]}})") ==
        "efficiency/card.json: memory_share: is out of range");
  CHECK(with(R"({"inherits": "gpu", "figures": {"memory_shares": [1, "a"]}})") ==
        "efficiency/card.json: memory_shares: unknown figure");
  CHECK(with(R"({"inherits": "cards", "figures": {}})") == "efficiency/cards.json: there is no such file");
  CHECK(with(R"({"inherits": "card", "figures": {}})") == "efficiency/card.json: inherits itself");
  CHECK(with(figures(R"("product_share": [1, "a"])")) == "efficiency/card.json: product_share_fp32: missing");
  CHECK(with(R"({"figures": [1]})") == "efficiency/card.json: figures: is not an object");
  CHECK(with("{}") == "efficiency/card.json: figures: missing");
}

TEST_CASE("a calibration replaces what it names, and the card keeps the rest") {
  const Cluster cluster = cluster_of("H100-80GB");
  const Efficiency known = efficiency_of(cluster);
  const Efficiency own =
      calibrated_efficiency(cluster, known, figures(R"("product_share": [0.5, "measured"])"), "mine.json");
  CHECK(own.product_share == 0.5);
  CHECK(own.memory_share == known.memory_share);
  CHECK(efficiency_of(cluster).product_share == known.product_share);
  CHECK_THROWS_WITH_AS(
      (void)calibrated_efficiency(cluster, known, figures(R"("product_share": [-1, "a"])"), "mine.json"),
      "mine.json: product_share: is out of range", InputError);
}

TEST_CASE("in a calibration without them, a card alone is as others, and host memory has no range") {
  const Cluster cluster = cluster_of("H100-80GB");
  const Efficiency known = efficiency_of(cluster);
  CHECK(known.host_memory_range > 1);
  const auto with = [&](const std::string& text) {
    return calibrated_efficiency(cluster, known, figures(text), "mine.json");
  };
  CHECK(with(R"("step_share": [0.5, "measured"])").step_share_alone == 0.5);
  CHECK(with(R"("step_share": [0.5, "measured"], "step_share_alone": [0.75, "measured"])").step_share_alone == 0.75);
  CHECK(with(R"("step_share_alone": [0.75, "measured"])").step_share == known.step_share);
  CHECK(with(R"("host_memory_bandwidth": [1e11, "measured"])").host_memory_range == 1);
  CHECK(with(R"("memory_share": [0.5, "measured"])").host_memory_range == known.host_memory_range);
}

TEST_CASE("shares of what a CPU is assumed to reach may be large, those of a card's peaks not") {
  const std::string text = figures(R"("product_share_fp32": [3.5, "measured"])");
  const Cluster cpu = parse_cluster("2xcpu-4GiB"), card = cluster_of("H100-80GB");
  CHECK(calibrated_efficiency(cpu, efficiency_of(cpu), text, "mine.json").product_share_fp32 == 3.5);
  CHECK_THROWS_AS((void)calibrated_efficiency(card, efficiency_of(card), text, "mine.json"), InputError);
}

TEST_CASE("every figure of every card says whether it was measured, published, fitted or assumed") {
  for (const EfficiencyFile& file : kEfficiencyFiles) {
    CAPTURE(file.name);
    for (const Figure& figure : read_efficiency(kEfficiencyFiles, std::string(file.name)).figures) {
      CAPTURE(figure.name);
      const bool is_known = figure.origin.starts_with("measured") || figure.origin.starts_with("published") ||
                            figure.origin.starts_with("fitted") || figure.origin.starts_with("assumed");
      CHECK_MESSAGE(is_known, figure.origin);
    }
  }
}

TEST_CASE("origins are counted by kind, the most first, and a calibration's figure replaces the known one") {
  Efficiency efficiency;
  set_figure(efficiency, {.name = "memory_share", .value = 0.5, .origin = "fitted to 3 copies"});
  set_figure(efficiency, {.name = "link_share", .value = 0.5, .origin = "assumed"});
  set_figure(efficiency, {.name = "cast_share", .value = 0.5, .origin = "assumed as copies"});
  CHECK(origins_text(efficiency) == "2 assumed, 1 fitted");
  const Cluster cluster = cluster_of("H100-80GB");
  const Efficiency& known = efficiency_of(cluster);
  const Efficiency own =
      calibrated_efficiency(cluster, known, figures(R"("link_share": [0.25, "measured here"])"), "own.json");
  CHECK(own.figures.size() == known.figures.size());
  const auto found = std::ranges::find(own.figures, "link_share", &Figure::name);
  REQUIRE(found != own.figures.end());
  CHECK(found->value == 0.25);
  CHECK(found->origin == "measured here");
}

}  // namespace vramfit
