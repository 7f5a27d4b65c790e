"""What `vramfit program` says is computed in a step."""

import re


def flops_of_step(program):
    """Of products and attention, in the last micro-batch, with the blocks that it calls."""
    section, own, calls = "", {}, []
    for line in program.splitlines():
        if not line.startswith(" "):
            section = line
        if call := re.match(r"  call (block \d+)", line):
            calls += [call[1]] if section == "last micro-batch" else []
        own[section] = own.get(section, 0) + sum(map(int, re.findall(r"(\d+) FLOPs of", line)))
    return own["last micro-batch"] + sum(own[call] for call in calls)
