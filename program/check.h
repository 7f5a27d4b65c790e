// Checks a program before anything runs it: what is read exists and was written, nothing is touched while a collective
// has it, and every section leaves what it should.
#pragma once

#include <optional>
#include <string>

#include "program/program.h"

namespace vramfit::program {

/// The first fault: "update: reads layers.3: gathered, which is not allocated"; none for a sound program. Middle
/// sections are read twice and the step three times, so that what one pass leaves to the next is seen. Rules:
/// - allocated: what is freed or touched is allocated, and nothing is allocated twice;
/// - written: what is read was written since it was allocated, all of it;
/// - fresh: a copy is not read after its source was written again (a gathered unit after the update);
/// - in flight: until its wait, what a collective has is neither touched nor freed;
/// - waits: each start is waited for once, in the step that starts it;
/// - streams: what another stream wrote is read, and what another stream touched is written, after a wait for it;
///   memory goes back to the stream of its pool, which waits for the others before it allocates again;
/// - closed: a middle section, and a step, leave allocated what they found. A first step that stands apart leaves what
///   later ones need.
std::optional<std::string> fault_of(const Program& program);

}  // namespace vramfit::program
