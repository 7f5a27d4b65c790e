#include "cli/rehearse/rehearsal.h"

#include <doctest/doctest.h>
#include <elf.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/process/process_record.h"
#include "cli/rehearse/launchers/launchers.h"
#include "cli/rehearse/processes/program_file.h"
#include "cli/rehearse/report/out_of_memory.h"
#include "cli/rehearse/report/records.h"
#include "tests/support/mutate.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

/// The record of process 71, rank 1: 900 bytes of card 0, two uncertain reads and three invented ones.
std::string process_file() {
  using process_record::Text;
  using process_record::TextKind;
  process_record::Header header{.magic = process_record::kMagic,
                                .process = 71,
                                .rank = 1,
                                .ended = 1,
                                .uncertain_reads = 2,
                                .uncertain_bytes = 16,
                                .invented_reads = 3,
                                .invented_bytes = 24,
                                .ghost_answers = 0,
                                .cards = 1,
                                .texts = 5,
                                .command = {"python"}};
  process_record::Card card{.is_used = 1,
                            .number = 0,
                            .used_bytes = 5,
                            .peak_used_bytes = 900,
                            .outside_at_peak_bytes = 300,
                            .managed_bytes = 0,
                            .peak_managed_bytes = 70,
                            .allocations = 4,
                            .out_of_memory_count = 1,
                            .is_last_refused = 0,
                            .failures = {{{.asked_bytes = 7, .free_bytes = -1}}}};
  const std::array<Text, 5> texts{
      {{.kind = TextKind::uncertain_place, .count = 2, .bytes = 16, .name = {"cudaMemcpyAsync"}},
       {.kind = TextKind::invented_place, .count = 3, .bytes = 24, .name = {"all_reduce of 1 int64"}},
       {.kind = TextKind::assumed, .assumptions = 16, .count = 1, .bytes = 4, .name = {"item at train.py:12"}},
       {.kind = TextKind::unsupported, .count = 3, .name = {"cudaGraphDebug"}},
       {.kind = TextKind::workspace, .count = 3, .bytes = 30, .name = {"cuDNN convolution"}}}};
  std::string bytes(process_record::file_bytes(1), '\0');
  std::memcpy(bytes.data(), &header, sizeof header);
  std::memcpy(bytes.data() + sizeof header, &card, sizeof card);
  std::memcpy(bytes.data() + sizeof header + sizeof card, texts.data(), sizeof texts);
  return bytes;
}

/// Each field of the header and of the card takes each of these numbers; then the file is cut.
std::string broken_process_file(int number, std::mt19937_64& random) {
  constexpr std::array<std::int64_t, 5> kNumbers{-1, 1, 4096, std::numeric_limits<std::int64_t>::max(),
                                                 std::numeric_limits<std::int64_t>::min()};
  std::string file = process_file();
  if (number % 2 != 0) return file;
  if (number % 7 == 0) return file.substr(0, random() % file.size());
  const std::size_t fields = 11 + sizeof(process_record::Card) / 8;
  const std::size_t field = random() % fields;
  const std::size_t at = field < 11 ? field * 8 : sizeof(process_record::Header) + (field - 11) * 8;
  const std::int64_t value = kNumbers.at(random() % kNumbers.size());
  std::memcpy(file.data() + at, &value, sizeof value);
  return file;
}

/// A document at the second place, as record.py writes it.
std::string python_file(const std::string& document) {
  constexpr std::size_t kSecond = 64 + (256 << 10);
  std::string bytes(kSecond, '\0');
  bytes[0] = '1';
  return bytes + document + "\n";
}

const std::string kPython =
    R"({"schema": "vramfit/phantom-python@1", "pid": 71, "ended": "exit", "torch": "2.11.0", "steps": 3, )"
    R"("exception": "", "pinned_peak_bytes": 0, "devices": [{"device": 0, "peak_requested_bytes": 400, )"
    R"("peak_allocated_bytes": 512, "peak_reserved_bytes": 600, "alloc_retries": 0, "out_of_memory_count": 0, )"
    R"("phases": [{"phase": "load", "step": "first", "peak_requested_bytes": 1, "peak_allocated_bytes": 2, )"
    R"("peak_reserved_bytes": 3}]}], "out_of_memory": [], "notes": []})";

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

TEST_CASE(
    "a process that was killed has torch's peaks of its last moment, and one that ended those of torch's record") {
  ProcessRecord process = process_of(71, 0, 500);
  process.cards[0].requested = {450};
  process.cards[0].allocated = {520};
  CHECK(judged({process}, 0).ranks.at(0).allocated == Bytes{500});
  process.torch->ended = "running";
  CHECK(judged({process}, 137).ranks.at(0).requested == Bytes{450});
  CHECK(judged({process}, 137).ranks.at(0).allocated == Bytes{520});
  process.torch->devices.clear();  // before the end of a phase
  CHECK(judged({process}, 137).ranks.at(0).by_torch);
  CHECK(judged({process}, 137).ranks.at(0).allocated == Bytes{520});
}

TEST_CASE(
    "of workspaces that count as 0, the upper bound has the largest, and all that are kept, as far as the card goes") {
  ProcessRecord process = process_of(71, 0, 500);
  process.workspaces = {{.what = "a", .count = 1, .most = {10}},
                        {.what = "b", .count = 1, .most = {25}},
                        {.what = "c", .count = 2, .most = {40}, .is_kept = true},
                        {.what = "d", .count = 2, .most = {2}, .is_kept = true}};
  const auto bound = [&] { return judged({process}, 0).ranks.at(0); };
  CHECK(bound().workspaces == Bytes{67});
  CHECK(bound().total == Bytes{600});
  CHECK(bound().upper_bound == Bytes{667});
  process.workspaces[1].most = {std::int64_t{1} << 50};
  CHECK(bound().upper_bound == parse_cluster("H100-80GB").card.memory);
  CHECK(judged({process}, 0).verdict == RehearsalVerdict::fits);
}

TEST_CASE("notes say what a stand-in answers with 0, what it takes at most, and which calls it doesn't support") {
  ProcessRecord process = process_of(71, 0, 500);
  process.unsupported = {{"ncclFoo (newer than this vramfit)", 2}};
  process.workspaces = {{.what = "cuDNN convolution", .count = 9, .most = {3 << 20}},
                        {.what = "cuFFT plan of its own", .count = 1, .most = {1 << 19}, .is_kept = true},
                        {.what = "cusolverDnXgeqrf_bufferSize", .count = 1, .most = {}, .has_bound = false}};
  const std::vector<std::string> notes = judged({process}, 0).notes;
  for (const char* text :
       {"rank 0: the workspace of cuDNN convolution is not known and counts as 0 bytes (asked for 9 times); it takes "
        "at "
        "most 3.0 MiB at once, which the upper bound has",
        "rank 0: the workspace of cuFFT plan of its own is not known and counts as 0 bytes (asked for once); it takes "
        "at "
        "most 0.5 MiB together, which the upper bound has",
        "rank 0: the workspace of cusolverDnXgeqrf_bufferSize is not known and counts as 0 bytes (asked for once); "
        "nobody "
        "publishes a bound, so a real GPU may need more than the upper bound",
        "rank 0 called ncclFoo (newer than this vramfit) 2 times, which phantom GPUs don't support"}) {
    CAPTURE(text);
    CHECK(std::ranges::find(notes, text) != notes.end());
  }
}

TEST_CASE("statistics of torch and of the driver about one process become one rank") {
  const testing::TemporaryDirectory directory;
  directory.write("process.71.record", process_file());
  directory.write("python.71.record", python_file(kPython));
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
  CHECK(rank.managed == Bytes{70});
  CHECK(rank.workspaces == Bytes{30});
  CHECK(rank.upper_bound == Bytes{1000});
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
    const std::string process = broken_process_file(i, random);
    directory.write("process.71.record", process);
    directory.write("python.71.record",
                    i % 2 == 0 ? python_file(kPython) : python_file(testing::mutate(kPython, random)));
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
  processes[0].torch->exception = "torch.OutOfMemoryError: CUDA out of memory";
  CHECK(judged(processes, 0).exit_code() == 6);  // as behind a pipe, whose last program ended well
}

TEST_CASE("memory that ran out on one rank is the verdict, although another rank was killed") {
  std::vector<ProcessRecord> processes{process_of(10, 0, 500), process_of(11, 1, 500)};
  processes[0].torch->ended = "running";
  processes[1].torch->devices[0].out_of_memory = 1;
  processes[1].torch->ended = "running";  // by its launcher, before an exception came to its end
  const Rehearsal rehearsal = judged(processes, 1);
  CHECK(rehearsal_text(rehearsal).starts_with("OUT OF MEMORY"));
  CHECK(rehearsal.exit_code() == 6);
  processes[1].torch->devices[0].out_of_memory = 0;
  CHECK(judged(processes, 1).verdict == RehearsalVerdict::failed);
  processes[1].cards[0].last_refused = true;  // past torch's allocator, such as a communicator's
  processes[1].torch->exception = "DistBackendError: ... Last error:\nFailed to CUDA calloc 700000000 bytes";
  CHECK(judged(processes, 1).verdict == RehearsalVerdict::does_not_fit);
}

TEST_CASE("memory that ran out and that the program survived is a risk, with the sizes that worked") {
  std::vector<ProcessRecord> processes{process_of(10, 0, 500)};
  TorchRecord& torch = *processes[0].torch;
  torch.devices[0].out_of_memory = 2;
  torch.out_of_memory.resize(2);
  torch.out_of_memory[1].inputs = {64, 512};
  torch.steps_since_out_of_memory = 3;
  torch.inputs = {16, 512};
  Rehearsal rehearsal = judged(processes, 0);
  CHECK(rehearsal.verdict == RehearsalVerdict::at_risk);
  CHECK(rehearsal.why.find("64 x 512 when it last ran out, 16 x 512 in the last step") != std::string::npos);
  CHECK(rehearsal.exit_code() == 0);
  rehearsal.strict_out_of_memory = true;
  CHECK(rehearsal.exit_code() == 6);
  CHECK(judged(processes, 1).verdict == RehearsalVerdict::failed);  // of something else, later
  processes[0].torch->steps_since_out_of_memory = 0;
  CHECK(judged(processes, 1).verdict == RehearsalVerdict::does_not_fit);
}

TEST_CASE("without an end, the driver's figures hold and torch's are those of the last phase") {
  ProcessRecord process = process_of(10, 0, 500);
  process.cards[0].peak_used = {1000};
  process.cards[0].outside = {100};
  process.torch->ended = "running";
  const Rehearsal rehearsal = judged({process}, 1);
  CHECK(rehearsal.ranks[0].total == Bytes{1000});
  CHECK(rehearsal.ranks[0].outside == Bytes{100});
  CHECK(rehearsal.ranks[0].reserved == Bytes{900});
  CHECK(rehearsal.ranks[0].allocated == Bytes{500});
}

TEST_CASE("launchers that start ranks in a way of their own are told from programs that only look like them") {
  CHECK(launcher_past_torch({"colossalai", "check"}).name.empty());
  CHECK(launcher_past_torch({"torchrun", "train.py"}).name.empty());
  CHECK(launcher_past_torch({"python", "composer.py"}).name.empty());
  CHECK(launcher_past_torch({"python", "-m", "pytest", "-m", "composer.cli.launcher"}).name.empty());
  CHECK(launcher_past_torch({"python", "-u", "-m", "composer.cli.launcher", "t.py"}).name ==
        "python -m composer.cli.launcher");
  CHECK(launcher_past_torch({"/opt/bin/horovodrun", "-np", "4", "-m", "pkg", "--lr", "1"}).program ==
        std::vector<std::string>{"python", "-m", "pkg", "--lr", "1"});
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
