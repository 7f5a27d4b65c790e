#include "executor/place/error_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "base/process/standard_streams.h"
#include "base/text/suggest.h"
#include "executor/place/rank_place.h"

namespace vramfit {

namespace {

/// The form that torch.distributed.elastic.multiprocessing.errors.ProcessFailure reads (PyTorch 2.11).
void write_error_file(const std::string& path, const std::string& line) {
  const nlohmann::json document{{"message", replace_broken_utf8(line)},
                                {"timestamp", std::to_string(std::time(nullptr))}};
  const std::string text = document.dump();
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) return;
  [[maybe_unused]] const ssize_t written = write(file, text.data(), text.size());
  close(file);
}

}  // namespace

void report_end(const std::string& line) {
  complain("vramfit-train", printable(line, line.size()));
  if (const auto path = environment_variables()("TORCHELASTIC_ERROR_FILE")) write_error_file(*path, line);
}

}  // namespace vramfit
