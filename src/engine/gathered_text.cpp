#include "engine/gathered_text.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>

namespace nearstep::engine {

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
        std::vector<std::string> came =
            unpack(swap_text(world, pack(passed), (world.rank() + distance) % ranks,
                             (world.rank() - distance + ranks) % ranks));
        std::ranges::move(came, std::back_inserter(known));
    }
    std::vector<std::string> texts(known.size());
    for (int before = 0; before < ranks; ++before) {
        texts[static_cast<std::size_t>((world.rank() - before + ranks) % ranks)] =
            std::move(known[static_cast<std::size_t>(before)]);
    }
    return texts;
}

// Each part follows its length.
std::string pack(const std::vector<std::string>& parts) {
    std::string packed;
    for (const std::string& part : parts) {
        const std::uint64_t bytes = part.size();
        packed.append(reinterpret_cast<const char*>(&bytes), sizeof bytes).append(part);
    }
    return packed;
}

std::vector<std::string> unpack(const std::string& packed) {
    std::vector<std::string> parts;
    for (std::size_t at = 0; at < packed.size();) {
        std::uint64_t bytes = 0;
        expects(at + sizeof bytes <= packed.size(), "a part has a length");
        std::memcpy(&bytes, packed.data() + at, sizeof bytes);
        at += sizeof bytes;
        expects(bytes <= packed.size() - at, "a part has its length");
        parts.push_back(packed.substr(at, bytes));
        at += bytes;
    }
    return parts;
}

}  // namespace nearstep::engine
