#include "job/cluster/cluster.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/conflict.h"
#include "base/error.h"
#include "base/text/characters.h"
#include "base/text/suggest.h"
#include "job/cluster/card_names.h"
#include "job/cluster/host_memory.h"

namespace vramfit {

namespace {

constexpr std::int64_t kMostNodes = 65536, kMostCardsPerNode = 1024;
constexpr double kMostGib = 1 << 20;
constexpr std::size_t kLongestText = 200;

// A CPU rank's figures are used only to rank plans: an order of magnitude for a server core, with memory and loopback
// shared by the ranks of a machine.
constexpr double kCpuFlopsPerThread = 3e10, kCpuMemoryBandwidth = 1e10, kCpuLinkBandwidth = 2e9;

// Between nodes whose cards have no usual NICs: one 100 Gb/s port per node.
constexpr double kNodeNetworkBandwidth = 100e9 / 8;

[[noreturn]] void refuse(std::string_view text, const std::string& what) {
  throw InputError(fmt::format("--gpus \"{}\": {}", printable(text), what));
}

constexpr std::string_view kGrammar =
    "expected [NODESx]COUNTxCARD, such as 8xH100-80GB, 2x8xA100-40GB, 4x24GB, 1x16GB,host=64GiB or 2xcpu-4GiB";

/// Takes "8x" off the front of `rest`.
std::optional<std::int64_t> take_count(std::string_view text, std::string_view& rest) {
  std::size_t digits = 0;
  while (digits < rest.size() && is_digit(rest[digits])) ++digits;
  if (digits == 0 || digits == rest.size() || (rest[digits] != 'x' && rest[digits] != 'X')) return std::nullopt;
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + digits, count);
  if (error != std::errc{} || count < 1 || count > kMostNodes) {
    refuse(text, fmt::format("{} is not a number of cards or nodes, of which there are 1 to {}",
                             printable(rest.substr(0, digits)), kMostNodes));
  }
  rest.remove_prefix(digits + 1);
  return count;
}

struct Size {
  double number = 0;
  std::string unit;  // "gb", "gib", "tib", ...
  Bytes bytes;
};

/// "24GB", "95.04GiB"; nothing when `text` is not a number and a unit.
std::optional<Size> read_size(std::string_view text) {
  Size size;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), size.number, std::chars_format::fixed);
  if (error != std::errc{} || end == text.data()) return std::nullopt;
  size.unit = folded_card_name(text.substr(static_cast<std::size_t>(end - text.data())));
  const double gib = static_cast<double>(kGiB.n);
  const double unit_bytes = size.unit == "gib"   ? gib
                            : size.unit == "tib" ? 1024 * gib
                            : size.unit == "mib" ? static_cast<double>(kMiB.n)
                            : size.unit == "gb"  ? 1e9
                            : size.unit == "tb"  ? 1e12
                            : size.unit == "mb"  ? 1e6
                                                 : 0;
  const double bytes = size.number * unit_bytes;
  if (unit_bytes == 0 || !(bytes >= 1) || bytes > kMostGib * gib) return std::nullopt;
  size.bytes = {std::llround(bytes)};
  return size;
}

/// A card known by its size only: the figures of `like`, as a card of compute capability 8.0.
Card generic_card(const Card& like, std::string_view size, Bytes memory) {
  Card card = like;
  card.name = std::string(size);
  card.cuda_name.clear();
  card.aliases.clear();
  card.device = {.kind = DeviceKind::cuda, .name = card.name, .compute_capability = 80, .sm_count = 108};
  card.memory = memory;
  card.bf16 = true;
  return card;
}

Card card_of_size(std::string_view text, std::string_view name, const Size& size, std::vector<std::string>& notes) {
  if (size.unit != "gb") {
    const Card& like = *find_card("A100-40GB");
    notes.push_back(
        fmt::format("{}: taken literally, as a card of compute capability 8.0 with the speed of {}", name, like.name));
    return generic_card(like, name, size.bytes);
  }
  const Card* smallest = nullptr;
  std::vector<std::int64_t> sold;
  for (const Card& card : card_catalog()) {
    if (std::ranges::find(sold, card.sold_as_gb) == sold.end()) sold.push_back(card.sold_as_gb);
    if (static_cast<double>(card.sold_as_gb) != size.number) continue;
    if (smallest == nullptr || card.memory < smallest->memory) smallest = &card;
  }
  if (smallest == nullptr) {
    std::ranges::sort(sold);
    std::string list;
    for (const std::int64_t gb : sold) list += fmt::format("{}{}GB", list.empty() ? "" : ", ", gb);
    refuse(text,
           fmt::format("the catalog has no card that is sold with {} (it has {}); a size in GiB is taken literally",
                       printable(name), list));
  }
  notes.push_back(
      fmt::format("{}: {}, the least that torch reports on cards sold so ({}), as a card of compute "
                  "capability 8.0",
                  name, format_gib(smallest->memory), smallest->name));
  return generic_card(*smallest, name, smallest->memory);
}

Card cpu_card(std::string_view text, std::string_view name, std::int64_t ranks) {
  const std::string_view size_text = name.substr(4);
  const std::optional<Size> size = read_size(size_text);
  if (!size) refuse(text, fmt::format("\"{}\" is not a size such as 4GiB", printable(size_text)));
  Card card;
  card.name = "cpu-" + std::string(size_text);
  card.device = {.kind = DeviceKind::cpu, .name = card.name};
  const auto cores = static_cast<std::int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  card.device.threads = static_cast<int>(std::max<std::int64_t>(1, cores / ranks));
#if defined(__x86_64__)
  card.device.onednn_bf16 = __builtin_cpu_supports("avx512bw") != 0;
#endif
  card.memory = size->bytes;
  card.bf16_flops = card.fp32_flops = kCpuFlopsPerThread * card.device.threads;
  card.memory_bandwidth = kCpuMemoryBandwidth;
  card.link_bandwidth = card.pcie_bandwidth = kCpuLinkBandwidth;
  card.bf16 = card.device.onednn_bf16;
  return card;
}

Card named_card(std::string_view text, std::string_view name, std::vector<std::string>& notes) {
  const std::size_t sign = name.find('@');
  const std::string_view base = name.substr(0, sign);
  const Card* found = find_card(base);
  if (found == nullptr) {
    throw InputError(fmt::format("--gpus \"{}\": \"{}\"{}", printable(text), printable(base), unknown_card_hint(base)));
  }
  Card card = *found;
  if (folded_card_name(base) != folded_card_name(card.name))
    notes.push_back(fmt::format("{} is read as {}", printable(base), card.name));
  if (sign == std::string_view::npos) return card;
  const std::optional<Size> size = read_size(name.substr(sign + 1));
  if (!size) refuse(text, fmt::format("\"{}\" is not a size such as 79.1GiB", printable(name.substr(sign + 1))));
  card.memory = size->bytes;
  return card;
}

/// "8 x H100", "8*H100", "8 H100", "H100x8" and "H100:8" as "8xH100"; other texts without their spaces.
std::string usual_form(std::string_view text) {
  std::string compact;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool after_count = !compact.empty() && std::isdigit(static_cast<unsigned char>(compact.back())) != 0 &&
                             compact.find_first_not_of("0123456789xX") == std::string::npos;
    const bool before_name = i + 1 < text.size() && std::isalpha(static_cast<unsigned char>(text[i + 1])) != 0 &&
                             text[i + 1] != 'x' && text[i + 1] != 'X';
    if (text[i] == ' ') {
      if (after_count && before_name) compact += 'x';
    } else if (text.substr(i).starts_with("\u00d7")) {  // the multiplication sign
      compact += 'x';
      ++i;
    } else {
      compact += text[i] == '*' ? 'x' : text[i];
    }
  }
  const std::size_t sign = compact.find_last_of("xX:");
  const bool count_last = sign != std::string::npos && sign + 1 < compact.size() && sign > 0 &&
                          compact.find_first_not_of("0123456789", sign + 1) == std::string::npos;
  if (!count_last || find_card(compact.substr(0, sign)) == nullptr) return compact;
  return compact.substr(sign + 1) + "x" + compact.substr(0, sign);
}

/// The bandwidth between nodes unless --network gives it, with its origin.
void assume_network(Cluster& cluster) {
  if (cluster.is_cpu()) {
    cluster.network_bandwidth = kCpuLinkBandwidth;
    cluster.network_origin = "assumed for CPU ranks; --network sets it";
  } else if (cluster.card.network_bandwidth > 0) {
    cluster.network_bandwidth = cluster.card.network_bandwidth;
    cluster.network_origin = fmt::format("usual for this card: {}; --network sets it", cluster.card.network_origin);
  } else {
    cluster.network_bandwidth = kNodeNetworkBandwidth / static_cast<double>(cluster.cards_per_node);
    cluster.network_origin = "assumed: one 100 Gb/s port per node; --network sets it";
  }
}

/// The text before a node's host memory, and that.
std::pair<std::string_view, std::string_view> split_host_memory(std::string_view text) {
  const std::size_t comma = text.find(',');
  if (comma == std::string_view::npos || !text.substr(comma + 1).starts_with(kHostMemoryKey)) return {text, ""};
  return {text.substr(0, comma), text.substr(comma + 1 + kHostMemoryKey.size())};
}

/// What `plan` takes, which chooses: several clusters, and a card whose number is asked for.
void refuse_choices(std::string_view given) {
  constexpr std::string_view kAuto = "auto:";
  if (given.starts_with(kAuto)) {
    const std::string_view card = given.substr(kAuto.size());
    const std::size_t count = card.find_first_not_of("0123456789");
    const bool has_count = count != 0 && count != std::string_view::npos && card[count] == 'x';
    refuse(given, fmt::format("auto: is for \"vramfit plan\", which finds how many GPUs it takes; give a number of "
                              "them, such as {}{}",
                              has_count ? "" : "8x", card.empty() ? "H100-80GB" : printable(card)));
  }
  const std::size_t last = given.rfind(',');
  if (last == std::string_view::npos || given.find('=', last) != std::string_view::npos) return;
  refuse(given, "one cluster is asked about; \"vramfit plan\" takes several, and says which is best");
}

Cluster parse_cards(std::string_view text);

}  // namespace

void set_host_memory(Cluster& cluster, std::string_view text) {
  const std::optional<Size> size = read_size(text);
  if (!size) throw InputError(fmt::format("--host-memory \"{}\": expected a size such as 64GiB", printable(text)));
  if (cluster.is_cpu()) {
    throw Conflict(
        fmt::format("--host-memory: CPU ranks have one memory, of which --gpus {} gives each its part", cluster.text));
  }
  if (cluster.host_memory.n > 0 && cluster.host_memory != size->bytes) {
    throw Conflict(fmt::format("--host-memory {}: --gpus {} says another size; leave out one of them", printable(text),
                               cluster.text));
  }
  cluster.host_memory = size->bytes;
}

Cluster parse_cluster(std::string_view given) {
  refuse_choices(given);
  const auto [cards, host] = split_host_memory(given);
  Cluster cluster = parse_cards(cards);
  if (cards.size() == given.size()) return cluster;
  set_host_memory(cluster, host);
  cluster.text += fmt::format(",{}{}", kHostMemoryKey, host);
  return cluster;
}

namespace {

Cluster parse_cards(std::string_view given) {
  if (given.empty() || given.size() > kLongestText) refuse(given, std::string(kGrammar));
  const std::string text = usual_form(given);
  Cluster cluster;
  cluster.text = printable(text);
  std::string_view name = text;
  if (const auto first = take_count(text, name)) {
    cluster.cards_per_node = *first;
    if (const auto second = take_count(text, name)) {
      cluster.nodes = *first;
      cluster.cards_per_node = *second;
    }
  }
  if (name.empty()) refuse(text, std::string(kGrammar));
  if (cluster.cards_per_node > kMostCardsPerNode) {
    refuse(text, fmt::format("more than {} cards a node", kMostCardsPerNode));
  }
  if (folded_card_name(name.substr(0, 4)) == "cpu" && name.size() > 4) {
    cluster.card = cpu_card(text, name, cluster.cards_per_node);
  } else if (const std::optional<Size> size = read_size(name)) {
    cluster.card = card_of_size(text, name, *size, cluster.notes);
  } else {
    cluster.card = named_card(text, name, cluster.notes);
  }
  assume_network(cluster);
  return cluster;
}

}  // namespace

}  // namespace vramfit
