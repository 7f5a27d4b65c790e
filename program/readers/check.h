// Checks a program before anything runs it: what is read exists and was written, nothing is touched while a collective
// has it, and every section leaves what it should.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "program/program.h"

namespace vramfit::program {

/// The first fault: "update: reads layers.3: gathered, which is not allocated"; none for a sound program. Middle
/// sections are read twice and the step three times, so that what one pass leaves to the next is seen. Rules:
/// - allocated: what is freed or touched is allocated, and nothing is allocated twice;
/// - written: what is read was written since it was allocated, all of it;
/// - views: a view lies in its buffer and has its dtype;
/// - lost: a gradient is not written over before something has read it;
/// - fresh: a copy is not read after its source was written again (a gathered unit after the update);
/// - value: what is read is the value that it is read for: nothing was written over it or took over its storage since;
/// - spent: once an update has read a gradient, nothing touches it until it is freed;
/// - sizes: the parts of an axis's ranks add up to what is gathered or scattered, and lie in the buffers named;
/// - in flight: until its wait, what a collective has is neither touched nor freed;
/// - waits: each start is waited for once, in the step that starts it;
/// - streams: what another stream wrote is read, and what another stream touched is written, after a wait for it;
///   memory comes from the stream of its pool, for which others wait before they touch it first, and goes back to it:
///   it waits for the others before it allocates again;
/// - closed: a middle section, and a step, leave allocated what they found. A first step that stands apart leaves what
///   later ones need.
/// - place: what lies in host memory is touched by copies and by what reads and writes it as a file does.
std::optional<std::string> fault_of(const Program& program);

/// The first fault between the programs of a job, one for each class of ranks with equal programs: on every axis,
/// classes of one stage start the same collectives in the same order; what one stage sends to another that one
/// receives, and none waits for what can't come.
std::optional<std::string> fault_between(std::span<const Program> classes);

}  // namespace vramfit::program
