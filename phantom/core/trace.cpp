#include "phantom/core/trace.h"

#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <mutex>
#include <string>

#include "phantom/core/session.h"

namespace vramfit::phantom {

namespace {

std::mutex mutex;
std::FILE* file = nullptr;
pid_t file_owner = 0;

// A forked child writes a file of its own.
std::FILE* open_file() {
  if (file != nullptr && file_owner == getpid()) return file;
  file_owner = getpid();
  const std::string path = session().folder + "/trace." + std::to_string(file_owner) + ".jsonl";
  file = std::fopen(path.c_str(), "ae");
  if (file != nullptr) std::setvbuf(file, nullptr, _IOLBF, 1 << 16);
  return file;
}

}  // namespace

bool tracing() { return session().settings.trace; }

void trace(std::string_view what, int card, const void* address, std::int64_t bytes, int status) {
  if (!tracing()) return;
  const std::lock_guard lock(mutex);
  if (std::FILE* out = open_file()) {
    std::fprintf(
        out, "{\"event\": \"%.*s\", \"card\": %d, \"address\": %" PRIuPTR ", \"bytes\": %" PRId64 ", \"status\": %d}\n",
        static_cast<int>(what.size()), what.data(), card, reinterpret_cast<std::uintptr_t>(address), bytes, status);
  }
}

void trace_name(std::string_view what, std::string_view name) {
  if (!tracing()) return;
  const std::lock_guard lock(mutex);
  if (std::FILE* out = open_file()) {
    std::fprintf(out, "{\"event\": \"%.*s\", \"name\": \"%.*s\"}\n", static_cast<int>(what.size()), what.data(),
                 static_cast<int>(name.size()), name.data());
  }
}

}  // namespace vramfit::phantom
