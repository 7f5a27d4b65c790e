// Hosts a ghost store for ghost_store_test.py: prints its port, ends when stdin does, and then prints what ghosts did.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "cli/rehearse/ghosts/ghost_store.h"

namespace {

void print_all(const char* what, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) std::printf("%s %s\n", what, line.c_str());
}

int host(int ranks, int played) {
  const vramfit::GhostStore store({.ranks = ranks, .played = played});
  std::printf("%d\n", store.port());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  const vramfit::GhostReport report = store.report();
  std::printf("answers %lld\n", static_cast<long long>(report.answers));
  print_all("ghost", report.keys);
  print_all("never-set", report.never_set_keys);
  print_all("refused", report.refused);
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  return argc == 3 ? host(std::atoi(argv[1]), std::atoi(argv[2])) : 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "ghost_store_host: %s\n", error.what());
  return 1;
}
