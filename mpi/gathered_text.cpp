// Brings each rank's text to all ranks. Used by restarts, the state and the Python binding.
#include "mpi/gathered_text.hpp"

#include "base/packed.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>

namespace nearstep::mpi {

namespace {

constexpr int kTag = 3;

// Sends a text to one rank and receives another's.
std::string swap_text(const mpi::Communicator& world, const std::string& mine, int to, int from) {
    const std::uint64_t out = mine.size();
    std::uint64_t in = 0;
    mpi::Request received =
        world.start_receive(std::as_writable_bytes(std::span(&in, 1)), from, kTag);
    mpi::Request sent = world.start_send(std::as_bytes(std::span(&out, 1)), to, kTag);
    received.wait();
    std::string theirs(in, 0);
    received = world.start_receive(std::as_writable_bytes(std::span(theirs)), from, kTag);
    mpi::Request followed = world.start_send(std::as_bytes(std::span(mine)), to, kTag);
    sent.wait();
    followed.wait();
    received.wait();
    return theirs;
}

}  // namespace

// In each round a rank passes on what it knows, so that it knows the texts of twice as many ranks
// afterwards: its own, and those of the ranks before it.
std::vector<std::string> gather_text(const mpi::Communicator& world, const std::string& mine) {
    const int ranks = world.size();
    std::vector<std::string> known = {mine};
    for (int distance = 1; distance < ranks; distance *= 2) {
        const std::vector<std::string> passed(known.begin(),
                                              known.begin() + std::min(distance, ranks - distance));
        std::vector<std::string> came;
        unpack(swap_text(world, packed(passed), (world.rank() + distance) % ranks,
                         (world.rank() - distance + ranks) % ranks),
               came);
        std::ranges::move(came, std::back_inserter(known));
    }
    std::vector<std::string> texts(known.size());
    for (int before = 0; before < ranks; ++before) {
        texts[static_cast<std::size_t>((world.rank() - before + ranks) % ranks)] =
            std::move(known[static_cast<std::size_t>(before)]);
    }
    return texts;
}

}  // namespace nearstep::mpi
