// Whether one job fits on cards of several sorts, each as many: cards on which it makes the same requests are counted
// once, and what is known not to fit isn't counted at all.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "estimator/estimate.h"

namespace vramfit {

/// The job on a cluster, unresolved: a library's runtime may be another on several GPUs.
using JobOn = std::function<Job(const Cluster& cluster)>;

/// The answer for one cluster.
struct Fit {
  std::optional<RankEstimate> rank;  // the first one, if the verdict is `fits`: its totals and its upper bound
  std::string lacking;               // what has no rules there; "" if all of it has
  std::string refusal;  // why the job can't be there: a card's units, a mesh that doesn't divide; "" if it can

  bool is_counted() const { return lacking.empty() && refusal.empty(); }
};

/// Keeps what the answers for one number of cards say of others. Not for several threads at once.
class FitOnCards {
 public:
  FitOnCards(const ModelSpec& spec, const JobOn& job_on, const RunEffects& run)
      : spec_(spec), job_on_(job_on), run_(run) {}

  /// For each of `clusters`, which have GPUs, as many nodes and cards, and differ in their cards; of those without a
  /// stated host memory alone.
  std::vector<Fit> of(std::span<const Cluster> clusters);

 private:
  struct Asked;
  struct Requests;

  /// What a job's activations take at once on a device, whatever the number of ranks: each has rows of its own.
  struct Activations {
    Device device;
    std::string job;  // but for its ranks
    Bytes peak;
  };

  /// Fills in what the job is on the first of the clusters that `asked` is about, and whether it may fit on any of
  /// them. Throws InputError and NotModelled, as make_requests does.
  void ask(Asked& asked, std::span<const Cluster> clusters);
  /// Fills in what it requests there. For several threads at once.
  void make_requests(Asked& asked, const Device& device) const;
  std::vector<Requests> gathered(std::span<Asked> all, std::span<const Cluster> clusters);
  const Graph& graph_of(const Job& job, const std::string& text);
  Bytes known_activations(const Device& device, const std::string& job) const;

  const ModelSpec& spec_;
  const JobOn& job_on_;
  RunEffects run_;
  std::vector<Activations> activations_;
  std::map<std::string, Graph> graphs_;  // by the job but for its ranks
};

}  // namespace vramfit
