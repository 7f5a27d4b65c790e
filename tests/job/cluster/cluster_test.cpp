#include "job/cluster/cluster.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "base/conflict.h"
#include "base/error.h"
#include "job/cluster/cluster_text.h"
#include "job/cluster/context.h"
#include "job/cluster/host_memory.h"
#include "job/fields/job_json.h"

namespace vramfit {

namespace {

std::string error_of(const std::string& text) {
  try {
    parse_cluster(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("the text of a cluster is its counts and its card as it was given") {
  for (const char* card : {"H100-80GB", "H100-80GB@95.04GiB", "RTX4090,host=64GiB", "24GB", "cpu-4GiB"}) {
    CAPTURE(card);
    CHECK(card_text(card) == card);
    CHECK(card_text(cluster_text(1, 8, card)) == card);
    CHECK(card_text(cluster_text(16, 8, card)) == card);
  }
  CHECK(card_text("2X8XRTX4090") == "RTX4090");
  CHECK(cluster_text(1, 4, "RTX4090") == "4xRTX4090");
  CHECK(cluster_text(2, 8, "H100-80GB") == "2x8xH100-80GB");
}

TEST_CASE("every card of the catalog can be named, by its name and by each alias, and no name is used twice") {
  std::set<std::string> names;
  for (const Card& card : card_catalog()) {
    CHECK(parse_cluster("2x" + card.name).card.name == card.name);
    CHECK(names.insert(card.name).second);
    for (const std::string& alias : card.aliases) {
      CHECK_MESSAGE(parse_cluster(alias).card.name == card.name, alias);
      CHECK_MESSAGE(names.insert(alias).second, alias);
    }
    CHECK(card.memory < card.sold_as_gb * kGiB);
    CHECK(card.device.compute_capability >= 60);
    CHECK(card.device.sm_count > 0);
    CHECK(card.context > Bytes{0});
    CHECK(card.nccl > Bytes{0});
  }
  CHECK(card_catalog().size() >= 45);
}

TEST_CASE("nodes, cards and the card are read in any case") {
  const Cluster cluster = parse_cluster("2X8xh100-80gb");
  CHECK(cluster.nodes == 2);
  CHECK(cluster.cards_per_node == 8);
  CHECK(cluster.cards() == 16);
  CHECK(cluster.card.name == "H100-80GB");
  CHECK(format_gib(cluster.card.memory) == "79.10 GiB");
  CHECK_FALSE(cluster.is_cpu());
  CHECK(cluster.notes.empty());
}

TEST_CASE("no name of a card with PCIe alone is that of one with NVLink") {
  for (const char* name : {"A100-PCIe-40GB", "A100-PCIE-40GB", "A100-PCIe-80GB", "H100-PCIe", "P100-PCIe", "P100"}) {
    CAPTURE(name);
    const Card card = parse_cluster(std::string("8x") + name).card;
    CHECK(card.link_bandwidth == card.pcie_bandwidth);
  }
  for (const Card& card : card_catalog()) {
    for (const std::string& alias : card.aliases) {
      if (alias.find("PCIe") == std::string::npos) continue;
      CHECK_MESSAGE(card.link_bandwidth == card.pcie_bandwidth, alias);
    }
  }
  CHECK(parse_cluster("8xA100-40GB").card.link_bandwidth == 300e9);
}

TEST_CASE("an alias is read as its card, and the notes say so") {
  const Cluster cluster = parse_cluster("8xA100");
  CHECK(cluster.card.name == "A100-80GB");
  REQUIRE(cluster.notes.size() == 1);
  CHECK(cluster.notes[0] == "A100 is read as A100-80GB");
}

TEST_CASE("a size after @ replaces what torch reports") {
  CHECK(format_gib(parse_cluster("4xH100-80GB@95.04GiB").card.memory) == "95.04 GiB");
  CHECK(error_of("4xH100-80GB@lots").find("is not a size") != std::string::npos);
}

TEST_CASE("a bare size in GB is the least that a card sold so shows, one in GiB is literal; both are generic cards") {
  const Cluster sold = parse_cluster("4x24GB");
  CHECK(sold.card.device.compute_capability == 80);
  CHECK(format_gib(sold.card.memory) == "22.00 GiB");
  REQUIRE(sold.notes.size() == 1);
  CHECK(sold.notes[0].find("compute capability 8.0") != std::string::npos);
  const Cluster literal = parse_cluster("1x95.04GiB");
  CHECK(format_gib(literal.card.memory) == "95.04 GiB");
  CHECK(literal.card.device.compute_capability == 80);
  CHECK(error_of("4x23GB").find("no card that is sold with 23GB (it has 10GB") != std::string::npos);
}

TEST_CASE("two sizes of a node's host memory contradict each other, the same one twice doesn't") {
  Cluster cluster = parse_cluster("4xRTX4090,host=64GiB");
  set_host_memory(cluster, "64GiB");
  CHECK(cluster.host_memory == 64 * kGiB);
  CHECK_THROWS_WITH_AS(set_host_memory(cluster, "128GiB"),
                       doctest::Contains("--gpus 4xRTX4090,host=64GiB says another"), Conflict);
}

TEST_CASE("cpu ranks have the size given, no compute capability, and at least one thread each") {
  const Cluster cluster = parse_cluster("2xcpu-4GiB");
  CHECK(cluster.is_cpu());
  CHECK(cluster.card.memory == 4 * kGiB);
  CHECK(cluster.card.device.compute_capability == 0);
  CHECK(cluster.card.device.threads >= 1);
  CHECK(parse_cluster("CPU-512MiB").card.memory == 512 * kMiB);
}

TEST_CASE("a misspelt card gets a suggestion") {
  const std::string text = error_of("8xH100-80GD");
  CHECK(text.find("did you mean H100-80GB or H100-96GB?") != std::string::npos);
  CHECK(error_of("8xH10O-80GB").find("did you mean") == std::string::npos);  // other digits are another card
}

TEST_CASE("hostile text is refused in one line") {
  for (const std::string text : {"",
                                 "x",
                                 "8x",
                                 "8x8x",
                                 "0xH100",
                                 "-1xH100",
                                 "99999999999999999999xH100",
                                 "8x8x8xH100",
                                 "8xcpu-",
                                 "8xcpu-0GiB",
                                 "8xcpu-nanGiB",
                                 "8xcpu-infGiB",
                                 "8xcpu-1e99GiB",
                                 "1x-5GiB",
                                 "8xH100@",
                                 "8xH100@-1GiB",
                                 "@",
                                 "\n\n",
                                 "8x\x01\x02",
                                 "70000x8xH100",
                                 "2000xH100",
                                 "8xcpu-99999999999GiB"}) {
    const std::string message = error_of(text);
    CHECK_MESSAGE(!message.empty(), text);
    CHECK(message.find('\n') == std::string::npos);
  }
  CHECK(!error_of(std::string(100000, 'x')).empty());
}

TEST_CASE(
    "the network between nodes is the card's usual one with its origin, else one port a node; --network sets it") {
  const Cluster hopper = parse_cluster("2x8xH100-80GB");
  CHECK(hopper.network_bandwidth == 50e9);
  CHECK(network_note(hopper).find("400 Gb/s per card") != std::string::npos);
  CHECK(network_note(hopper).find("Azure/azurehpc-health-checks") != std::string::npos);
  CHECK(parse_cluster("2x8xA100-80GB").network_bandwidth == 25e9);
  const Cluster desktop = parse_cluster("2x4xRTX4090");
  CHECK(desktop.network_bandwidth == 100e9 / 8 / 4);
  CHECK(network_note(desktop).find("assumed") != std::string::npos);
  CHECK(network_note(parse_cluster("8xH100-80GB")).empty());

  Cluster cluster = hopper;
  set_network(cluster, "200Gbps/card");
  CHECK(cluster.network_bandwidth == 25e9);
  set_network(cluster, "50GB/s/node");
  CHECK(cluster.network_bandwidth == 50e9 / 8);
  set_network(cluster, "3.2Tb/s/node");
  CHECK(cluster.network_bandwidth == doctest::Approx(50e9));
  CHECK(network_note(cluster).find("set by --network") != std::string::npos);
  for (const char* text :
       {"", "400", "400Gbps", "/card", "fast/card", "0Gbps/card", "-1GB/s/node", "nanGbps/card", "infGB/s/card",
        "1e400GB/s/card", "400Gbps/rack", "400 Gbps/card/card", "99999999TB/s/card"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(set_network(cluster, text), InputError);
  }
  Cluster node = parse_cluster("8xH100-80GB");
  CHECK_THROWS_WITH_AS(set_network(node, "400Gbps/card"), doctest::Contains("is one node"), InputError);
}

TEST_CASE("a node's host memory follows its cards, or is set; CPU ranks have one memory") {
  const Cluster cluster = parse_cluster("2x16GB,host=64GiB");
  CHECK(cluster.cards_per_node == 2);
  CHECK(cluster.host_memory == 64 * kGiB);
  CHECK(cluster.text == "2x16GB,host=64GiB");
  CHECK(parse_cluster("8xH100-80GB,host=1.5TiB").host_memory == 1536 * kGiB);
  CHECK(parse_cluster(cluster.text).host_memory == cluster.host_memory);
  CHECK(parse_cluster("2x16GB").host_memory == Bytes{});
  Cluster node = parse_cluster("8xH100-80GB");
  set_host_memory(node, "64GB");
  CHECK(node.host_memory == Bytes{64'000'000'000});
  for (const char* text : {"", "64", "GiB", "-1GiB", "nanGiB", "0GiB", "1e400GiB"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(set_host_memory(node, text), InputError);
    CHECK_THROWS_AS(parse_cluster(std::string("8xH100-80GB,host=") + text), InputError);
  }
  CHECK_THROWS_WITH_AS(parse_cluster("2xcpu-4GiB,host=64GiB"), doctest::Contains("CPU ranks have one memory"),
                       InputError);
  CHECK_THROWS_AS(parse_cluster("8xH100-80GB,memory=64GiB"), InputError);
}

TEST_CASE("what a plan alone takes is called that, not an unknown card") {
  CHECK_THROWS_WITH_AS(parse_cluster("auto:RTX4090"),
                       doctest::Contains("auto: is for \"vramfit plan\", which finds how many GPUs it takes; give a "
                                         "number of them, such as 8xRTX4090"),
                       InputError);
  CHECK_THROWS_WITH_AS(parse_cluster("auto:4xH100"), doctest::Contains("such as 4xH100"), InputError);
  CHECK_THROWS_WITH_AS(parse_cluster("auto:"), doctest::Contains("such as 8xH100-80GB"), InputError);
  for (const char* several : {"4xRTX4090,1xH100", "4xRTX4090,host=64GiB,1xH100", "4xRTX4090,"}) {
    CAPTURE(several);
    CHECK_THROWS_WITH_AS(parse_cluster(several), doctest::Contains("\"vramfit plan\" takes several"), InputError);
  }
}

TEST_CASE("a file keeps what PyTorch's runtimes take on a card, where that is more") {
  for (const char* name : {"1xH200", "1xH100-80GB"}) {
    CAPTURE(name);
    const Cluster cluster = parse_cluster(name);
    JsonWriter writer;
    write_cluster(writer, cluster);
    const JsonValue document = parse_json(writer.take(), "job.json");
    JsonObject object(document, "job.json");
    const Card read = read_cluster(object).card;
    for (const Runtime runtime : {Runtime::vramfit, Runtime::pytorch_fsdp2}) {
      CHECK(context_of(runtime, read) == context_of(runtime, cluster.card));
    }
  }
  CHECK(context_of(Runtime::pytorch_fsdp2, parse_cluster("H200").card) == 767 * kMiB);
}

}  // namespace vramfit
