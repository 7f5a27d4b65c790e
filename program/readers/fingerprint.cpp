#include "program/readers/fingerprint.h"

#include <fmt/format.h>

#include "base/numbers/mix_bits.h"
#include "job/fields/job_json.h"
#include "program/readers/expand.h"

namespace vramfit::program {

namespace {

/// Hashes what read_section shows it.
class Shared {
 public:
  explicit Shared(const Job& job) : hash_(fnv1a(job_to_json(job))) {}

  void add(std::int64_t number) { hash_ = mix_bits(hash_, static_cast<std::uint64_t>(number)); }
  void add(const Section& section) {
    add(static_cast<std::int64_t>(section.kind));
    add(static_cast<std::int64_t>(section.steps));
    add(section.times);
  }
  void read(const Start& start, const Place& /*place*/) {
    add(static_cast<std::int64_t>(start.collective));
    add(static_cast<std::int64_t>(start.axis));
    add(start.bytes.n);
  }

  std::uint64_t hash() const { return hash_; }

 private:
  std::uint64_t hash_;
};

}  // namespace

std::string fingerprint_of(const Job& job, const Program& program) {
  Shared shared(job);
  for (const Group& group : program.groups) {
    shared.add(group.members);
    shared.add(group.stride);
  }
  for (const Section& section : program.sections) {
    shared.add(section);
    read_section(program, section, shared);
  }
  return fmt::format("{:016x}", shared.hash());
}

}  // namespace vramfit::program
