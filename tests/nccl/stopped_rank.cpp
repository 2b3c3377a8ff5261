// Exchanges between GPUs until a rank stops; stopped_rank_test.py checks how all ranks end.
//   nccl.stopped_rank PHASE HOW LIMIT_S
// PHASE: "init", "reduce_scatter", "exchange", "all_gather", "second_group" or "none". HOW: "kill"
// (ends the last rank) or "stall" (it takes part in nothing more). LIMIT_S: limit of every wait.
// Exit code 77: fewer GPUs than ranks.
#include "base/error.hpp"
#include "mpi/nccl/group.hpp"
#include "mpi/session.hpp"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace nccl = nearstep::nccl;
namespace memory = nearstep::memory;

constexpr int kCannotRun = 77;

struct Plan {
    std::string phase;
    std::string how;

    // The last rank stops here.
    void pass(const std::string& here, bool is_last) const {
        if (here != phase || !is_last) {
            return;
        }
        if (how == "kill") {
            static_cast<void>(std::raise(SIGKILL));
        }
        for (;;) {
            std::this_thread::sleep_for(std::chrono::seconds(1));
        }
    }
};

// `second`: a group of the same ranks, in its own stream.
void run(nccl::Group& group, nccl::Group& second, const Plan& plan) {
    constexpr std::size_t kPart = 1 << 20;
    const auto ranks = static_cast<std::size_t>(group.size());
    const bool is_last = group.rank() + 1 == group.size();
    memory::GpuBuffer all(kPart * ranks);
    memory::GpuBuffer part(kPart);
    memory::GpuBuffer inbox(kPart * ranks);
    const memory::Stream stream(memory::StreamPriority::high);
    fill_with_zeros(all.span(), stream);
    std::vector<std::span<const std::byte>> to(ranks);
    std::vector<std::span<std::byte>> from(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        if (static_cast<int>(rank) != group.rank()) {
            to[rank] = all.span().subspan(rank * kPart, kPart);
            from[rank] = inbox.span().subspan(rank * kPart, kPart);
        }
    }
    const memory::Stream apart(memory::StreamPriority::high);
    memory::Event done;
    for (int round = 0; round < 3; ++round) {
        const auto pass = [&](const char* phase) {
            if (round == 1) {  // once NCCL has connected
                plan.pass(phase, is_last);
            }
        };
        pass("reduce_scatter");
        group.reduce_scatter(all.span(), part.span(), nearstep::Dtype::bf16, stream);
        done.record(stream);
        group.wait_for(done);
        pass("exchange");
        group.exchange(to, from, stream);
        done.record(stream);
        group.wait_for(done);
        // Operations of both groups are pending at once.
        pass("second_group");
        second.exchange(to, from, apart);
        pass("all_gather");
        group.all_gather(part.span(), all.span(), stream);
        done.record(stream);
        group.wait_for(done);
        done.record(apart);
        second.wait_for(done);
    }
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape)
    const nearstep::mpi::Session session;
    if (argc != 4) {
        throw nearstep::ConfigError("Usage: nccl.stopped_rank PHASE HOW LIMIT_S");
    }
    const Plan plan{argv[1], argv[2]};
    const std::chrono::seconds limit(std::stoi(argv[3]));
    // MPI's limit is longer, so that NCCL's limit is tested.
    const auto world = nearstep::mpi::Communicator::world(limit * 10);
    if (nccl::library_version().empty() || memory::gpus() < world.size()) {
        if (world.rank() == 0) {
            std::printf("%d GPUs and %s for %d ranks\n", memory::gpus(),
                        nccl::library_version().empty() ? "no NCCL" : "NCCL", world.size());
        }
        return kCannotRun;
    }
    memory::use_gpu(world.rank());
    std::printf("rank %d is process %d\n", world.rank(), static_cast<int>(::getpid()));
    std::fflush(stdout);
    world.barrier();
    nccl::Watchdog watchdog;
    // The others get NCCL's id and wait for this rank.
    if (plan.phase == "init" && world.rank() + 1 == world.size()) {
        static_cast<void>(world.broadcast("", 0));
        plan.pass("init", true);
    }
    nccl::Group group(world, world.rank(), watchdog, limit);
    nccl::Group second(world, world.rank(), watchdog, limit);
    run(group, second, plan);
    return 0;
}
