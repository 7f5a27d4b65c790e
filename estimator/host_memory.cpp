#include "estimator/host_memory.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/text/digits_apart.h"
#include "estimator/host_loading.h"
#include "program/make_program.h"
#include "program/readers/host_bytes.h"

namespace vramfit {

namespace {

/// What buffers in host memory take on the first node, which holds rank 0. Ranks differ only in what they save.
Bytes host_buffers(const Estimate& e, const Graph& graph, const RunEffects& run) {
  const std::int64_t ranks = e.cluster.cards_per_node;
  if (!saves_anything(run)) return ranks * e.ranks.front().host;
  Bytes bytes;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const Coords coords{rank / e.job.mesh.shard, rank % e.job.mesh.shard};
    bytes += host_bytes(program::make_program({.graph = graph,
                                               .job = e.job,
                                               .device = e.cluster.card.device,
                                               .coords = coords,
                                               .run = run,
                                               .labels = false}));
  }
  return bytes;
}

void add_to_phases(RankEstimate& rank, const std::vector<HostPhase>& phases) {
  for (PhasePeak& peak : rank.phases) {
    for (const HostPhase& host : phases) {
      if (peak.phase == host.phase && peak.steady == host.is_steady) peak.host = host.peak;
    }
  }
}

/// Of the phase that weights are loaded in.
Bytes host_while_loading(const RankEstimate& rank) {
  const auto load = std::ranges::find(rank.phases, Phase::load, &PhasePeak::phase);
  return load == rank.phases.end() ? Bytes{} : load->host;
}

/// " of 64.00 GiB", or nothing where nobody said what a node has.
std::string of_node(const Cluster& cluster) {
  return cluster.host_memory.n > 0 ? fmt::format(" of {}", format_gib(cluster.host_memory)) : "";
}

void say_loading(Estimate& e, const HostLoading& loading) {
  if (loading.of_rank().n > 0) {
    std::string what = loading.what;
    if (loading.adapters.n > 0) what += what.empty() ? "adapters" : " and adapters";
    e.assumptions.push_back(fmt::format("{}{} of host memory a node while weights are loaded: {} in each rank for {}",
                                        format_gib(e.cluster.cards_per_node * host_while_loading(e.ranks.front())),
                                        of_node(e.cluster), format_size(loading.of_rank()), what));
  }
  if (e.cluster.host_memory.n == 0) return;
  if (!loading.unknown.empty()) {
    e.assumptions.push_back("not counted in host memory: copies " + loading.unknown);
  }
  e.assumptions.emplace_back(
      "not counted in host memory: pages of mapped weight files, what saving takes, libraries and data");
}

}  // namespace

void add_host_loading(RankEstimate& rank, const ModelSpec& spec, const Graph& graph, const Job& job,
                      const program::Program& program) {
  const HostLoading loading = host_loading(spec, graph, job);
  if (loading.of_rank().n == 0) return;
  Bytes buffers;  // the rank may be without phases
  for (const HostPhase& host : host_use(program).phases) {
    if (host.phase == Phase::load) buffers = host.peak;
  }
  const Bytes both = loading.ends_first ? std::max(loading.of_rank(), buffers) : loading.of_rank() + buffers;
  for (PhasePeak& peak : rank.phases) {
    if (peak.phase == Phase::load) peak.host = both;
  }
  rank.host = std::max(rank.host, both);
}

void add_host(RankEstimate& rank, const program::Program& program, const Cluster& cluster) {
  const HostUse use = host_use(program);
  rank.host = use.peak;
  add_to_phases(rank, use.phases);
  rank.managed = managed_bytes(program);
  rank.host += rank.managed - managed_on_card(rank, cluster.card.memory);
}

Bytes host_bytes_of_node(const Estimate& e, const Graph& graph, const RunEffects& run) {
  const Bytes buffers = host_buffers(e, graph, run);
  if (!e.cluster.is_cpu()) return buffers;
  return e.ranks.front().total + (e.cluster.cards_per_node - 1) * e.ranks.back().total + buffers;
}

void judge_host_memory(Estimate& e, const ModelSpec& spec, const Graph& graph, const RunEffects& run) {
  const bool saves = saves_anything(run);
  const bool is_paged = e.ranks.front().managed.n > 0;
  if (is_paged) {
    e.assumptions.emplace_back(
        "optimizer states in managed memory: those that the card has room for besides the total are on it, the rest "
        "are in host memory; if they don't all fit on the card, each update moves all of them both ways");
  }
  if (saves || is_paged || !e.job.offload.empty()) {
    e.assumptions.push_back(fmt::format("{}{} of host memory a node{}", format_gib(e.host_bytes), of_node(e.cluster),
                                        saves ? ", copies for checkpoints included" : ""));
  }
  if (e.job.runtime != Runtime::vramfit) say_loading(e, host_loading(spec, graph, e.job));
  if (!exceeds_host_memory(e.host_bytes, e.cluster)) return;
  const Bytes loading = e.cluster.cards_per_node * host_while_loading(e.ranks.front());
  const bool is_first_to_fail = e.job.runtime != Runtime::vramfit && exceeds_host_memory(loading, e.cluster);
  const Bytes needed = is_first_to_fail ? loading : e.host_bytes;
  const int digits = digits_apart(needed, e.cluster.host_memory);
  e.why = fmt::format("host memory{}: {} of {} a node", is_first_to_fail ? " while loading" : "",
                      format_gib(needed, digits), format_gib(e.cluster.host_memory, digits));
  e.verdict = Verdict::does_not_fit;
}

}  // namespace vramfit
