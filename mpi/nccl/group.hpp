// A group of ranks that own a GPU each, and their operations on the GPUs' memory.
//
// Operations are collective over the group, in the same order on all its ranks, and are called from
// one thread. They return when NCCL has queued them: the GPU does them in the stream's order. While
// they run, a watchdog holds them to the time limit (see watchdog.hpp); a call that NCCL refuses,
// or does not take in time, aborts and throws NcclError, too.
//
// A rank may be in up to four groups, each used in one stream, if all ranks call the operations of
// all their groups in one order: then none can wait for ever. For of the operations that are not
// over take the one that was called first. All that stands before it in its stream was called
// earlier, and is over on all ranks but for kernels that wait for nobody. Those that were called
// later and already wait for other GPUs are one of each other group, and a group's kernels take a
// quarter of a GPU at most: so it begins on all its ranks, and ends.
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
#include <vector>

namespace nearstep::nccl {

// "2.28.9", of the library that runs; empty if the program was built without.
std::string library_version();

// Why these ranks cannot be a Group, as the end of a sentence: the same on all. None: they can.
// `gpu`: the one this rank has, if it has any. Collective.
std::optional<std::string> find_obstacle(const mpi::Communicator& ranks, std::optional<int> gpu);

// Dies before the mpi::Session, and while no operation is under way; the watchdog outlives it.
class Group {
public:
    // NCCL's start, which takes seconds where there are many ranks. `gpu`: this rank's, no other's.
    // Throws NcclError, at the latest after `limit`.
    Group(const mpi::Communicator& ranks, int gpu, Watchdog& watchdog, std::chrono::seconds limit);
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;
    // Waits for the other ranks, at most as long as the limit.
    ~Group();

    int rank() const { return rank_; }
    int size() const { return size_; }
    int gpu() const { return gpu_; }

    // mine = the sum over all ranks of part rank() of their `parts`, of fp32 or bf16, which has
    // size() of them. Two ranks' sums are rounded once; more ranks' in an order that NCCL chooses
    // from the machine and the size, bf16 at each addition.
    void reduce_scatter(std::span<const std::byte> parts, std::span<std::byte> mine, Dtype dtype,
                        const memory::Stream& stream);

    // all = everyone's `mine`, in rank order; as many bytes of each.
    void all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                    const memory::Stream& stream);

    // bytes = the root's.
    void broadcast(std::span<std::byte> bytes, int root, const memory::Stream& stream);

    // Sends to[r] to rank r and receives from[r] from it, all at once. Both sides know the sizes;
    // 0 bytes are no message. This rank's own are empty: what it keeps is there.
    void exchange(std::span<const std::span<const std::byte>> to,
                  std::span<const std::span<std::byte>> from, const memory::Stream& stream);

    // Waits on the host until the stream has come to the event, behind which operations are done.
    // Throws NcclError if they were aborted, and what they brought must not be used.
    void wait_for(const memory::Event& event);

private:
    struct State;

    int rank_;
    int size_;
    int gpu_;
    Watchdog& watchdog_;
    int watch_ = -1;
    std::shared_ptr<State> state_;  // a thread that aborts may keep it
};

}  // namespace nearstep::nccl
