#include "executor/calibrate/calibrate.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <chrono>
#include <string_view>

#include "base/error.h"
#include "base/files/result_file.h"
#include "base/text/suggest.h"
#include "executor/calibrate/measured_kernels_torch.h"
#include "executor/meter/cuda_meter.h"
#include "executor/meter/phantom.h"
#include "executor/place/rank_place.h"
#include "executor/run/among_others.h"
#include "executor/run/cpu_threads.h"
#include "executor/sharding/meeting.h"
#include "job/cluster/cluster.h"
#include "job/fields/field_text.h"

namespace vramfit {

namespace {

constexpr std::chrono::seconds kTimeout{600};

struct CalibrateFlags {
  std::string output, gpus;
  double seconds = 0;
  int threads = 0;
};

CalibrateFlags parse_flags(std::span<const std::string> arguments) {
  CalibrateFlags flags;
  for (std::size_t i = 0; i + 1 < arguments.size(); i += 2) {
    const std::string &name = arguments[i], &value = arguments[i + 1];
    if (name == "--calibrate")
      flags.output = value;
    else if (name == "--gpus")
      flags.gpus = value;
    else if (name == "--seconds")
      flags.seconds = real_number(value, 0, 1e6);
    else if (name == "--threads")
      flags.threads = static_cast<int>(whole_number(value, 0, 4096));
    else
      throw InputError(fmt::format("{}: unknown flag beside --calibrate", printable(name, 60)));
  }
  if (arguments.size() % 2 != 0) throw InputError(fmt::format("{}: needs a value", printable(arguments.back(), 60)));
  if (flags.output.empty() || flags.gpus.empty()) throw InputError("--calibrate: needs FILE and --gpus CLUSTER");
  return flags;
}

void check_place(const Cluster& cluster, const RankPlace& place) {
  if (cluster.cards() == place.world) return;
  throw InputError(
      fmt::format("--gpus {} has {} ranks, {} were started", printable(cluster.text), cluster.cards(), place.world));
}

/// Its multiprocessors and compute capability decide; names differ from driver to driver.
void check_is_card(const Cluster& cluster, const Device& found) {
  const Device& asked = cluster.card.device;
  if (found.compute_capability == asked.compute_capability && found.sm_count == asked.sm_count) return;
  throw InputError(fmt::format(
      "--gpus {}: the GPU here is {}, with compute capability {}.{} and {} multiprocessors, and not that card; "
      "\"vramfit gpus\" lists names",
      printable(cluster.text), printable(found.name), found.compute_capability / 10, found.compute_capability % 10,
      found.sm_count));
}

Device open_device(const Cluster& cluster, const CalibrateFlags& flags, const RankPlace& place) {
  Device device = cluster.card.device;
  if (flags.threads > 0) device.threads = flags.threads;
  // Beside GPUs the CPU makes updates in host memory, with the threads of `vramfit run`.
  const auto ranks = static_cast<int>(cluster.cards_per_node);
  at::set_num_threads(cluster.is_cpu() ? device.threads : cpu_threads(flags.threads, ranks));
  if (cluster.is_cpu()) return device;
  device = open_cuda_device(place.local_rank, "expandable");
  check_is_card(cluster, device);
  make_cublas_handle(/*uses_cublaslt=*/false);
  return device;
}

void measure(const Cluster& cluster, const CalibrateFlags& flags, const RankPlace& place, Meeting* meeting) {
  const c10::AutoGradMode no_gradients(false);
  const Device device = open_device(cluster, flags, place);
  const auto groups = connect({.place = place,
                               .device = device.kind,
                               .shard_ranks = place.world,
                               .agreement = fmt::format("calibrate {}", flags.gpus),
                               .timeout = kTimeout,
                               .meeting = meeting});
  const at::Device where =
      cluster.is_cpu() ? at::Device(at::kCPU) : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(place.local_rank));
  const Measurements found =
      measured_here({.device = device, .place = where, .groups = *groups, .seconds = flags.seconds});
  if (place.rank == 0) write_file(flags.output, measurements_to_json(found));
  groups->world().barrier();
}

}  // namespace

void calibrate_rank(std::span<const std::string> arguments) {
  const CalibrateFlags flags = parse_flags(arguments);
  const Cluster cluster = parse_cluster(flags.gpus);
  if (gpus_are_phantoms() && !cluster.is_cpu()) {
    throw InputError("the GPUs here are phantoms, on which nothing takes time; calibrate on real ones");
  }
  const RankPlace place = rank_place(environment_variables());
  check_place(cluster, place);
  const auto meeting = place.world == 1 ? nullptr : meet(place, kTimeout);
  const auto run = [&] { measure(cluster, flags, place, meeting.get()); };
  meeting ? run_among_others(meeting->watch(), run) : run();
}

}  // namespace vramfit
