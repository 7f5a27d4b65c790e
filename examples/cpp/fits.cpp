// Whether a model can be trained on a cluster as it is, and the fastest way to do so.
// Usage: fits MODEL CLUSTER [FIELD=VALUE]...
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>

#include "base/error.h"
#include "base/text/units.h"
#include "estimator/estimate.h"
#include "job/cluster/cluster.h"
#include "job/fields/job_fields.h"
#include "model_specs/catalog.h"
#include "planner/plan.h"

namespace {

// The catalog needs no file and no network; model_specs/resolve.h reads paths and the hub too.
vramfit::ModelSpec model_named(const std::string& name) {
  const vramfit::CatalogEntry* entry = vramfit::find_in_catalog(name);
  if (entry == nullptr) throw vramfit::ModelError(name + ": not in the catalog" + vramfit::catalog_suggestion(name));
  return vramfit::catalog_spec(*entry);
}

void print(const vramfit::Estimate& found) {
  std::printf("%s: %s\n", std::string(vramfit::verdict_name(found.verdict)).c_str(), found.why.c_str());
  if (found.ranks.empty()) return;  // not modelled
  const vramfit::RankEstimate& worst = vramfit::worst_rank(found);
  std::printf("needs %s of %s\n", vramfit::format_gib(worst.total).c_str(),
              vramfit::format_gib(found.capacity).c_str());
}

int run(int count, char** words) {
  vramfit::PlanRequest request;
  request.spec = model_named(words[1]);
  request.cluster = vramfit::parse_cluster(words[2]);
  request.job = vramfit::unresolved_job();  // what is not set follows from model and cluster
  for (int index = 3; index < count; ++index) {
    const std::string word = words[index], name = word.substr(0, word.find('='));
    const vramfit::JobField& field = vramfit::job_field_named(name);
    vramfit::set_job_field(request.job, field, word.substr(std::min(word.size(), name.size() + 1)), name);
    request.fixed.emplace_back(field.name);
  }
  print(vramfit::estimate(request.spec, request.job, request.cluster, {.suggestions = false}));

  const vramfit::Plan plan = vramfit::make_plan(request);
  if (!plan.chosen) {
    std::printf("no plan: %s\n", plan.why.c_str());
    return 4;
  }
  const std::string flags = vramfit::job_as_flags(plan.chosen->job, request.job);
  std::printf("fastest: %.0f tokens/s with %s\n", plan.chosen->tokens_per_second, flags.c_str());
  return 0;
}

}  // namespace

int main(int count, char** words) {
  if (count < 3) {
    std::fprintf(stderr, "usage: fits MODEL CLUSTER [FIELD=VALUE]...\n");
    return 2;
  }
  try {
    return run(count, words);
  } catch (const std::exception& error) {  // vramfit::InputError, vramfit::ModelError
    std::fprintf(stderr, "fits: %s\n", error.what());
    return 1;
  }
}
