// Chooses the NUMA node that each rank of a host is bound to: pure arithmetic.
#pragma once

#include <vector>

namespace nearstep::locality {

// A node for each rank of a host; empty if there are fewer ranks than nodes, because bound ranks
// would leave cores idle then. Each node takes an equal number of ranks, or one more. The ranks
// with the most to move choose first. Each takes the node that is nearest to what it moves, and of
// equal ones that of its place among the ranks.
// `moved`: what each rank moves to and from each node in a step, in any unit. `distances`: from the
// CPUs of each node to the memory of each.
std::vector<int> choose_nodes(const std::vector<std::vector<double>>& moved,
                              const std::vector<std::vector<double>>& distances);

}  // namespace nearstep::locality
