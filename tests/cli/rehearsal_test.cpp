#include "cli/rehearse/rehearsal.h"

#include <doctest/doctest.h>
#include <elf.h>

#include <cstring>
#include <filesystem>

#include "cli/rehearse/launchers.h"
#include "cli/rehearse/program_file.h"
#include "cli/rehearse/records.h"
#include "tests/support/mutate.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

const std::string kProcess = R"({"schema": "vramfit/phantom-process@1", "pid": 71, "rank": 1,
  "command": ["python", "train.py"], "ended": true,
  "cards": [{"card": 0, "used_bytes": 5, "peak_used_bytes": 900, "outside_bytes": 300, "allocations": 4,
             "out_of_memory": [{"asked_bytes": 7, "free_bytes": -1}]}],
  "uncertain_reads": {"count": 2, "bytes": 16, "places": ["cudaMemcpyAsync"]},
  "invented_reads": {"count": 3, "bytes": 24, "places": ["all_reduce of 1 int64"]}, "ghost_answers": 0,
  "assumed_reads": [{"what": "item at train.py:12", "steers": false, "assumptions": 16, "count": 1, "bytes": 4}],
  "unsupported": {"cudaGraphDebug": 3}, "escapes": []})";
const std::string kPython = R"({"schema": "vramfit/phantom-python@1", "pid": 71, "ended": "exit",
  "torch": "2.11.0", "steps": 3, "exception": "", "pinned_peak_bytes": 0,
  "devices": [{"device": 0, "peak_requested_bytes": 400, "peak_allocated_bytes": 512, "peak_reserved_bytes": 600,
               "alloc_retries": 0, "out_of_memory_count": 0,
               "phases": [{"phase": "load", "step": "first", "peak_requested_bytes": 1, "peak_allocated_bytes": 2,
                           "peak_reserved_bytes": 3}]}],
  "out_of_memory": [], "notes": []})";

ProcessRecord process_of(std::int64_t process, std::int64_t rank, std::int64_t reserved) {
  ProcessRecord record;
  record.process = process;
  record.rank = rank;
  record.cards.resize(1);
  record.cards[0].card = 0;
  record.cards[0].peak_used = {reserved + 100};
  record.torch.emplace();
  record.torch->ended = "exit";
  record.torch->devices.resize(1);
  record.torch->devices[0].reserved = record.torch->devices[0].allocated = {reserved};
  return record;
}

Rehearsal judged(std::vector<ProcessRecord> processes, int exit_code) {
  Rehearsal rehearsal;
  rehearsal.cluster = parse_cluster("4xH100-80GB");
  rehearsal.end.exit_code = exit_code;
  rehearsal.processes = std::move(processes);
  judge(rehearsal);
  return rehearsal;
}

std::string program_file(const testing::TemporaryDirectory& directory, const std::string& name,
                         std::string_view bytes) {
  std::string path = directory.write(name, bytes);
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

std::string elf_file(const testing::TemporaryDirectory& directory, const std::string& loader) {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_phoff = sizeof header;
  header.e_phnum = loader.empty() ? 0 : 1;
  Elf64_Phdr segment{};
  segment.p_type = PT_INTERP;
  segment.p_offset = sizeof header + sizeof segment;
  segment.p_filesz = loader.size() + 1;
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes.append(reinterpret_cast<const char*>(&segment), sizeof segment);
  return program_file(directory, "program", bytes + loader + '\0');
}

TEST_CASE("statistics of torch and of the driver about one process become one rank") {
  const testing::TemporaryDirectory directory;
  directory.write("process.71.json", kProcess);
  directory.write("python.71.json", kPython);
  std::vector<std::string> notes;
  const Rehearsal rehearsal = judged(read_records(directory.path().string(), notes), 0);
  CHECK(notes.empty());
  REQUIRE(rehearsal.ranks.size() == 1);
  const RehearsedRank& rank = rehearsal.ranks[0];
  CHECK(rank.by_torch);
  CHECK(rank.first == 1);
  CHECK(rank.total == Bytes{900});
  CHECK(rank.outside == Bytes{300});
  CHECK(rank.steps == 3);
  CHECK(rehearsal.uncertain_reads().count == 2);
  CHECK(rehearsal.verdict == RehearsalVerdict::fits);  // the driver's refusal was the allocator's cue to try again
  CHECK(rehearsal_text(rehearsal).find("values: 2 uncertain reads (16 bytes) at cudaMemcpyAsync") != std::string::npos);
  CHECK(rehearsal.invented_reads().bytes == Bytes{24});
  CHECK(rehearsal_text(rehearsal).find("values: 3 invented reads (24 bytes) at all_reduce of 1 int64") !=
        std::string::npos);
  CHECK(rehearsal_text(rehearsal).find("values: certain") == std::string::npos);
}

TEST_CASE("a read that steers by an assumption is a risk, unless it is only that numbers are finite") {
  const auto verdict = [](bool steers, std::int64_t assumptions) {
    ProcessRecord process = process_of(10, 0, 500);
    process.assumed.push_back(
        {.what = "item at train.py:12", .steers = steers, .assumptions = assumptions, .count = 3, .bytes = {24}});
    return judged({process, process}, 0);
  };
  CHECK(verdict(false, 16).verdict == RehearsalVerdict::fits);
  CHECK(verdict(true, 1).verdict == RehearsalVerdict::fits);
  CHECK(verdict(true, 256).verdict == RehearsalVerdict::fits);
  CHECK(verdict(true, -1).verdict == RehearsalVerdict::at_risk);
  const Rehearsal risky = verdict(true, 1 | 2);
  CHECK(risky.verdict == RehearsalVerdict::at_risk);
  CHECK(risky.why.find("item at train.py:12") != std::string::npos);
  CHECK(rehearsal_text(risky).find("  item at train.py:12 (6 times): finite, routing\n") != std::string::npos);
  CHECK(rehearsal_text(risky).find("assumed, routing: ") != std::string::npos);
  CHECK(rehearsal_text(risky).find("values: certain") == std::string::npos);
  CHECK(rehearsal_to_json(risky).find("\"certain\": true") == std::string::npos);
}

TEST_CASE("records that are broken are named and never crash the report") {
  const testing::TemporaryDirectory directory;
  std::mt19937_64 random(7);
  for (int i = 0; i < 300; ++i) {
    directory.write("process.71.json", i % 2 == 0 ? testing::mutate(kProcess, random) : kProcess);
    directory.write("python.71.json", i % 2 == 0 ? kPython : testing::mutate(kPython, random));
    std::vector<std::string> notes;
    const Rehearsal rehearsal = judged(read_records(directory.path().string(), notes), i % 3);
    CHECK_FALSE(rehearsal_text(rehearsal).empty());
    CHECK_FALSE(rehearsal_to_json(rehearsal).empty());
  }
}

TEST_CASE("ranks with equal figures share an entry and the fullest is the worst") {
  const Rehearsal rehearsal =
      judged({process_of(10, 0, 500), process_of(11, 1, 500), process_of(12, 2, 900), process_of(13, 3, 500)}, 0);
  REQUIRE(rehearsal.ranks.size() == 3);
  CHECK(rehearsal.ranks[0].last == 1);
  CHECK(rehearsal.worst == 1);
  CHECK(rehearsal.ranks[1].total == Bytes{1000});
}

TEST_CASE("a failing command ran out of memory only if torch did, and its last exception does not say otherwise") {
  std::vector<ProcessRecord> processes{process_of(10, 0, 500)};
  CHECK(judged(processes, 1).verdict == RehearsalVerdict::failed);
  CHECK(judged(processes, 1).exit_code() == 1);
  processes[0].torch->devices[0].out_of_memory = 1;
  CHECK(judged(processes, 1).verdict == RehearsalVerdict::does_not_fit);
  CHECK(judged(processes, 1).exit_code() == 6);
  CHECK(judged(processes, 0).verdict == RehearsalVerdict::at_risk);
  processes[0].torch->exception = "ValueError: something else";
  CHECK(judged(processes, 1).verdict == RehearsalVerdict::failed);
}

TEST_CASE("launchers are told from programs that only look like them") {
  CHECK(recognise_launcher({"accelerate", "config"}).name.empty());
  CHECK(recognise_launcher({"python", "torchrun.py"}).name.empty());
  CHECK(recognise_launcher({"python", "-m", "pytest", "-m", "torch.distributed.run"}).name.empty());
  CHECK(recognise_launcher({"python", "-u", "-m", "torch.distributed.run", "t.py"}).name ==
        "python -m torch.distributed.run");
  CHECK(recognise_launcher({"/venv/bin/torchrun", "--nproc-per-node=4", "-m", "pkg", "--lr", "1"}).program ==
        std::vector<std::string>{"python", "-m", "pkg", "--lr", "1"});
  CHECK(shell_words({"a", "", "it's"}) == R"(a '' 'it'\''s')");
}

TEST_CASE("programs that the loader starts past the phantom are told apart") {
  const testing::TemporaryDirectory directory;
  CHECK(why_out_of_reach(elf_file(directory, "")) == "is statically linked");
  CHECK(why_out_of_reach(elf_file(directory, "/lib/ld-musl-x86_64.so.1")) == "uses the loader ld-musl-x86_64.so.1");
  CHECK(why_out_of_reach(elf_file(directory, "/lib64/ld-linux-x86-64.so.2")).empty());
  const std::string script = program_file(directory, "script", "#!" + elf_file(directory, "") + "\n");
  CHECK(why_out_of_reach(script) == "is statically linked");
  CHECK(why_out_of_reach(program_file(directory, "short",
                                      "\x7f"
                                      "ELF"))
            .empty());
  CHECK(why_out_of_reach(program_file(directory, "empty", "")).empty());
}

}  // namespace
}  // namespace vramfit
