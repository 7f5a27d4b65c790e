#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text/suggest.h"
#include "executor/checkpoint/files.h"
#include "job/fields/field_text.h"

namespace vramfit {
namespace {

constexpr const char* kVariable = "VRAMFIT_FILE_FAULT";

struct Fault {
  std::string_view name;
  int error;        // 0: the process kills itself
  bool only_grows;  // whether calls that need no space still work
};
constexpr std::array kFaults{Fault{"kill", 0, false}, Fault{"no-space", ENOSPC, true},
                             Fault{"read-only", EROFS, false}};

class FaultyFileCalls final : public FileCalls {
 public:
  FaultyFileCalls(const Fault& fault, std::int64_t first, std::unique_ptr<FileCalls> calls)
      : fault_(fault), first_(first), calls_(std::move(calls)) {}

  int make_directory(int folder, const std::string& name) override {
    return at_fault(true) ? fault_.error : calls_->make_directory(folder, name);
  }
  int create(int folder, const std::string& name) override {
    return at_fault(true) ? -fault_.error : calls_->create(folder, name);
  }
  int write(int descriptor, std::span<const char> bytes) override {
    if (fault_.error == 0 && count_ + 1 >= first_) calls_->write(descriptor, bytes.first(bytes.size() / 2));
    return at_fault(true) ? fault_.error : calls_->write(descriptor, bytes);
  }
  int sync(int descriptor) override { return at_fault(true) ? fault_.error : calls_->sync(descriptor); }
  int close(int descriptor) override {
    const int closed = calls_->close(descriptor);
    if (fault_.error == 0) at_fault(false);
    return closed;
  }
  int sync_directory(int folder) override { return at_fault(false) ? fault_.error : calls_->sync_directory(folder); }
  int rename(int folder, const std::string& from, const std::string& to) override {
    return at_fault(false) ? fault_.error : calls_->rename(folder, from, to);
  }
  int remove_file(int folder, const std::string& name) override {
    return at_fault(false) ? fault_.error : calls_->remove_file(folder, name);
  }
  int remove_directory(int folder, const std::string& name) override {
    return at_fault(false) ? fault_.error : calls_->remove_directory(folder, name);
  }

 private:
  bool at_fault(bool grows) {
    if (++count_ < first_) return false;
    if (fault_.error == 0) ::kill(::getpid(), SIGKILL);
    return grows || !fault_.only_grows;
  }

  const Fault& fault_;
  std::int64_t first_;
  std::unique_ptr<FileCalls> calls_;
  std::atomic<std::int64_t> count_ = 0;
};

std::string variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing here changes the environment
  return value == nullptr ? "" : value;
}

}  // namespace

std::unique_ptr<FileCalls> file_calls_from_environment(int rank) {
  const std::string text = variable(kVariable), only = variable("VRAMFIT_FILE_FAULT_RANK");
  if (text.empty() || (!only.empty() && only != std::to_string(rank))) return real_file_calls();
  const std::size_t at = text.find('@');
  for (const Fault& fault : kFaults) {
    if (at == std::string::npos || text.substr(0, at) != fault.name) continue;
    const std::int64_t first =
        whole_number(std::string_view(text).substr(at + 1), 1, std::numeric_limits<std::int64_t>::max());
    return std::make_unique<FaultyFileCalls>(fault, first, real_file_calls());
  }
  throw InputError(std::string(kVariable) + "=" + printable(text) + ": not kill@N, no-space@N or read-only@N");
}

}  // namespace vramfit
