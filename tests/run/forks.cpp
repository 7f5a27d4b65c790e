#include "tests/run/forks.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "tests/run/vramfit_run.h"
#include "tests/support/paths.h"

namespace vramfit::testing {

namespace {
constexpr int kMicrosecondsOfTry = 20'000, kMostTries = 30'000;  // ten minutes

std::string shell_word(const std::filesystem::path& path) { return "'" + path.string() + "'"; }
}  // namespace

TrainForks::TrainForks(Cards cards) {
  namespace fs = std::filesystem;
  const fs::path folder = directory_.path(), bin = bin_dir();
  std::error_code other_disk;
  fs::create_hard_link(bin / "vramfit", folder / "vramfit", other_disk);  // it looks for vramfit-train beside itself
  if (other_disk) fs::copy_file(bin / "vramfit", folder / "vramfit");
  fs::create_symlink(fs::absolute(bin / "train_client"), folder / "vramfit-train");
  std::string command = shell_word(bin / "train_forks") + " " + shell_word(socket());
  if (cards == Cards::phantom) {
    setenv("VRAMFIT_PHANTOM_LIB", (fs::canonical(bin).parent_path() / "lib/phantom").c_str(),
           1);  // not beside the link
    command = shell_word(bin / "vramfit") + " rehearse --gpus 1xH100-80GB -- " + command;
  }
  // Its stdin ends with this process.
  const std::string said = (folder / "said").string();
  server_ = popen(("(" + command + " || echo ended) > " + shell_word(said)).c_str(), "we");
  std::string words;
  for (int tries = 0; server_ != nullptr && tries < kMostTries && words.empty(); ++tries) {
    usleep(kMicrosecondsOfTry);
    words = read_text(said);
  }
  if (words != "ready\n") throw std::runtime_error("train_forks doesn't start");
}

TrainForks::~TrainForks() {
  if (server_ != nullptr) pclose(server_);
}

std::string TrainForks::vramfit() const {
  setenv("VRAMFIT_TRAIN_FORKS", socket().c_str(), 1);
  return (directory_.path() / "vramfit").string();
}

}  // namespace vramfit::testing
