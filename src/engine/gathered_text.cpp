#include "engine/gathered_text.hpp"

#include "base/error.hpp"

#include <cstdint>
#include <cstring>

namespace nearstep::engine {

std::vector<std::string> gather_text(const mpi::Communicator& world, const std::string& mine) {
    std::vector<std::string> texts;
    texts.reserve(static_cast<std::size_t>(world.size()));
    for (int rank = 0; rank < world.size(); ++rank) {
        texts.push_back(world.broadcast(rank == world.rank() ? mine : "", rank));
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
