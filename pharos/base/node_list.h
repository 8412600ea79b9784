// SLURM's compressed lists of host names: "rack[3-4]n[01-08,11],x7".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pharos::base {

/// The hosts of `list`, in its order; of several brackets in a name the last one runs fastest. A number keeps the zeros
/// it is written with: [08-11] is 08, 09, 10, 11. The text after a bracket stays. UserError that shows the place when
/// the list is empty or not well formed, or has more than a million hosts.
std::vector<std::string> expand_node_list(std::string_view list);

}  // namespace pharos::base
