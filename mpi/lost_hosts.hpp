// Which hosts of the job do not answer, for the words of a wait that took too long. Any thread may
// call these functions.
#pragma once

#include <string>
#include <vector>

namespace nearstep::mpi {

// Notes the hosts of this process's job, in the order of its nodes.
void note_hosts(std::vector<std::string> names);

// Returns those of the hosts that answer no TCP connection within some seconds, neither by taking
// nor by refusing it. A name that cannot be resolved is left out.
std::vector<std::string> silent_hosts(const std::vector<std::string>& names);

// "; no answer from host b" of the noted hosts, this one left out; empty if all answer. With many
// hosts this one asks the next 64 alone.
std::string describe_silent_hosts();

}  // namespace nearstep::mpi
