// Stands in for mpi/nccl/group.hpp's functions in a build without NCCL. Used
// where group_nccl.cpp is otherwise.
#include "mpi/nccl/group.hpp"

namespace nearstep::nccl {

namespace {

[[noreturn]] void refuse() {
    throw NcclError(
        "This program was built without NCCL: build it where nvcc and NCCL are, or set "
        "exchange.transport to \"mpi\".");
}

}  // namespace

std::string library_version() { return ""; }

std::optional<std::string> find_obstacle(const mpi::Communicator& /*ranks*/,
                                         std::optional<int> /*gpu*/) {
    return "this program was built without NCCL";
}

struct Group::State {};

Group::Group(const mpi::Communicator& ranks, int gpu, Watchdog& watchdog,
             std::chrono::seconds /*limit*/)
    : rank_(ranks.rank()), size_(ranks.size()), gpu_(gpu), watchdog_(watchdog) {
    refuse();
}

Group::~Group() = default;

void Group::reduce_scatter(std::span<const std::byte> /*parts*/, std::span<std::byte> /*mine*/,
                           Dtype /*dtype*/, const memory::Stream& /*stream*/) {
    refuse();
}

void Group::all_gather(std::span<const std::byte> /*mine*/, std::span<std::byte> /*all*/,
                       const memory::Stream& /*stream*/) {
    refuse();
}

void Group::exchange(std::span<const std::span<const std::byte>> /*to*/,
                     std::span<const std::span<std::byte>> /*from*/,
                     const memory::Stream& /*stream*/) {
    refuse();
}

void Group::wait_for(const memory::Event& /*event*/) { refuse(); }

double Group::take_seconds() { refuse(); }

}  // namespace nearstep::nccl
