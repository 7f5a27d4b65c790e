// A job, the cards it runs on and its model, as one line of text that means the same on every machine.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "job/cluster/cluster.h"
#include "job/job.h"
#include "model_specs/graph.h"
#include "model_specs/spec.h"

namespace vramfit::testing {

/// "MODEL[/LAYERS] NODESxCARDS DEVICE [FIELD=VALUE ...]". MODEL is a file under tests/models without ".json", or a name
/// of the catalog; LAYERS replaces the number of layers of such a file. DEVICE is cuda:CAPABILITY:SMS or
/// cpu:THREADS:BF16, written out so that it depends on no machine and no catalog of cards.
struct JobLine {
  std::string model, shape, device;
  std::vector<std::pair<std::string, std::string>> settings;  // fields of a job, and clip=off
};

JobLine parse_job_line(const std::string& text);
std::string text_of(const JobLine& line);

struct ResolvedJob {
  ModelSpec spec;
  Cluster cluster;
  Job job;
  Graph graph;
  bool clip = true;
};

/// Throws InputError or NotModelled where vramfit refuses the job.
ResolvedJob resolved(const JobLine& line);

}  // namespace vramfit::testing
