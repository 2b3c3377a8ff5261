// Ranks that own one GPU each, and their collective operations on GPU memory.
//
// Operations are collective over the group, in the same order on all its ranks, and called from one
// thread. They return once NCCL has queued them; the GPU runs them in stream order. A watchdog
// limits their time (see watchdog.hpp). A call that NCCL rejects or does not accept in time aborts
// everything and throws NcclError.
//
// A rank may be in up to four groups, each used in one stream, if all ranks call the operations of
// all groups in the same order. Then there is no deadlock: consider the unfinished operation that
// was called first. Everything before it in its stream has finished on all ranks, except kernels
// that wait for no other GPU. Of the operations called later, at most one per other group can
// already wait for other GPUs, and a group's kernels use at most a quarter of a GPU. So the
// operation starts on all its ranks and ends.
#pragma once

#include "base/dtype.hpp"
#include "memory/gpu.hpp"
#include "mpi/communicator.hpp"
#include "mpi/nccl/watchdog.hpp"

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace nearstep::nccl {

// The version of NCCL in use, such as "2.28.9"; empty if the program was built without it,
// or the process cannot load it.
std::string library_version();

// Why these ranks cannot form a Group, as the end of a sentence, the same on all; none if they can.
// `gpu`: this rank's GPU, if it has one. Collective.
std::optional<std::string> find_obstacle(const mpi::Communicator& ranks, std::optional<int> gpu);

// Destroy it before the mpi::Session, with no operation running; the watchdog outlives it.
class Group {
public:
    // Initialises NCCL, which takes seconds with many ranks. `gpu`: used by no other rank. Throws
    // NcclError, at the latest after `limit`.
    Group(const mpi::Communicator& ranks, int gpu, Watchdog& watchdog, std::chrono::seconds limit);
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;
    // Waits for the other ranks, up to the time limit.
    ~Group();

    int rank() const { return rank_; }
    int size() const { return size_; }
    int gpu() const { return gpu_; }

    // mine = the sum over all ranks of part rank() of their `parts`, which hold size() parts of
    // fp32 or bf16. With two ranks each sum is rounded once. With more, NCCL chooses the order of
    // additions from the machine and the size, and rounds bf16 at each addition.
    void reduce_scatter(std::span<const std::byte> parts, std::span<std::byte> mine, Dtype dtype,
                        const memory::Stream& stream);

    // all = every rank's `mine`, in rank order; all have the same size.
    void all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                    const memory::Stream& stream);

    // Sends to[r] to rank r and receives from[r] from it, all at once. Both sides know the sizes; 0
    // bytes send no message. This rank's own entries must be empty.
    void exchange(std::span<const std::span<const std::byte>> to,
                  std::span<const std::span<std::byte>> from, const memory::Stream& stream);

    // Blocks the host until the stream reaches the event, recorded after the operations. Throws
    // NcclError if they were aborted; their results must not be used then.
    void wait_for(const memory::Event& event);

    // Seconds that this GPU was in operations, of all that were noticed to have ended since the
    // last call: it moved data, or waited for the GPUs of other ranks.
    double take_seconds();

private:
    struct State;

    int rank_;
    int size_;
    int gpu_;
    Watchdog& watchdog_;
    int watch_ = -1;
    std::shared_ptr<State> state_;  // shared with the watchdog's threads
};

}  // namespace nearstep::nccl
