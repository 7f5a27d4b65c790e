#include "estimator/host_memory.h"

#include <fmt/format.h>

#include "base/digits_apart.h"
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

}  // namespace

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

void judge_host_memory(Estimate& e, const RunEffects& run) {
  const bool saves = saves_anything(run);
  const std::string has = e.cluster.host_memory.n > 0 ? fmt::format(" of {}", format_gib(e.cluster.host_memory)) : "";
  const bool is_paged = e.ranks.front().managed.n > 0;
  if (is_paged) {
    e.assumptions.emplace_back(
        "optimizer states in managed memory: on the card as far as it has room beside the total, the rest in host "
        "memory; if they don't all fit there, each update moves all of them both ways");
  }
  if (saves || is_paged || !e.job.offload.empty()) {
    e.assumptions.push_back(fmt::format("{}{} of host memory a node{}", format_gib(e.host_bytes), has,
                                        saves ? ", copies for checkpoints included" : ""));
  }
  if (!exceeds_host_memory(e.host_bytes, e.cluster)) return;
  const int digits = digits_apart(e.host_bytes, e.cluster.host_memory);
  e.why = fmt::format("host memory: {} of {} a node", format_gib(e.host_bytes, digits),
                      format_gib(e.cluster.host_memory, digits));
  e.verdict = Verdict::does_not_fit;
}

}  // namespace vramfit
