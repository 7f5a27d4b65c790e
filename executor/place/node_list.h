// Slurm's lists of hosts: "node[01-03,07],login1".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vramfit {

/// The hosts of a list in its order; "node[01-03,07]" gives node01, node02, node03, node07 (digits as many as the
/// range's first number has), "r[0-1]n[1-2]" gives r0n1, r0n2, r1n1, r1n2 (slurm.conf(5), "hostlist"). Throws
/// InputError for what isn't such a list, for characters that no host name has, and beyond 65536 hosts.
std::vector<std::string> expand_node_list(std::string_view text);

/// Letters, digits and "-._", at most 253 of them (RFC 1123), not beginning with '-'.
bool is_host_name(std::string_view text);

}  // namespace vramfit
