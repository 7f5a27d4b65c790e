#include "executor/checkpoint/saver.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "executor/checkpoint/folder.h"
#include "executor/checkpoint/open_folder.h"

namespace vramfit {
namespace {

constexpr std::size_t kBlock = std::size_t{4} << 20;  // bytes of a write: given up between two of them
constexpr std::chrono::milliseconds kPoll{2};

/// The writer was told to end, because the run has failed elsewhere.
struct GivenUp : FaultError {
  GivenUp() : FaultError("checkpoint: abandoned because the run is ending") {}
};

std::string topic(std::int64_t step, int rank) { return fmt::format("checkpoint/{}/{}", step, rank); }

}  // namespace

Saver::Saver(SaverOptions options, FileCalls& files, ProcessGroups& groups, Job job)
    : options_(std::move(options)), files_(files), groups_(groups), job_(std::move(job)) {}

Saver::~Saver() {
  given_up_ = true;
  if (thread_.joinable()) thread_.join();
}

void Saver::save(Manifest manifest, const std::function<void(Snapshot&)>& fill) {
  wait();
  manifest_ = std::move(manifest);
  snapshot_.step = manifest_.step;
  fill(snapshot_);
  ended_ = false;
  thread_ = std::thread([this] {
    try {
      write();
    } catch (...) {
      failure_ = std::current_exception();
    }
    ended_ = true;
  });
}

void Saver::check() {
  if (ended_) wait();
}

void Saver::wait() {
  if (thread_.joinable()) thread_.join();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Saver::write() {
  const SavedFile own = write_part();
  if (options_.rank != 0) {
    groups_.post(topic(snapshot_.step, options_.rank), fmt::format("{} {}", own.bytes, own.crc32c));
    return;
  }
  collect_parts(own);
  const OpenFolder directory = OpenFolder::at(options_.directory);
  commit(files_, directory, snapshot_.step, manifest_to_json(manifest_, job_));
  remove_older(files_, directory, snapshot_.step, options_.keep);
}

SavedFile Saver::write_part() {
  const OpenFolder aside = OpenFolder::at(options_.directory).make_entry(files_, aside_name(snapshot_.step));
  OutputFile file(files_, aside, rank_file(static_cast<std::size_t>(options_.rank)));
  file.append(snapshot_.header);
  std::span<const char> rest = snapshot_.data;
  while (!rest.empty()) {
    if (given_up_) throw GivenUp();
    const std::span<const char> block = rest.first(std::min(kBlock, rest.size()));
    file.append(block);
    rest = rest.subspan(block.size());
  }
  file.finish();
  aside.sync(files_);
  return {file.bytes(), file.checksum()};
}

void Saver::collect_parts(SavedFile own) {
  manifest_.files = {own};
  for (int rank = 1; rank < options_.world; ++rank) manifest_.files.push_back(part_of(rank));
}

SavedFile Saver::part_of(int rank) {
  const auto until = std::chrono::steady_clock::now() + options_.timeout;
  while (true) {
    if (given_up_) throw GivenUp();
    if (const std::optional<std::string> text = groups_.posted(topic(snapshot_.step, rank))) {
      const std::size_t space = text->find(' ');
      return {std::stoll(text->substr(0, space)), static_cast<std::uint32_t>(std::stoul(text->substr(space + 1)))};
    }
    if (std::chrono::steady_clock::now() > until) {
      throw FaultError(fmt::format("checkpoint of step {}: rank {} did not write its file within {} s", snapshot_.step,
                                   rank, options_.timeout.count() / 1000));
    }
    std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace vramfit
