// Shares each rank's text with all ranks.
#pragma once

#include "mpi/communicator.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nearstep::mpi {

// Texts of consecutive ranks. Equal ones are kept, and sent, once.
class SharedTexts {
public:
    void add(const std::string& text, std::uint32_t count = 1);
    // The first `count` as bytes, and those bytes added behind these texts.
    std::string packed_first(std::size_t count) const;
    void add_packed(std::string_view bytes);

    std::size_t size() const { return size_; }
    // Returns the texts in the order in which they were added.
    std::vector<std::string> all() const;

private:
    // Neighbours with the same text.
    struct Run {
        std::uint32_t text = 0;  // in texts_
        std::uint32_t count = 0;
    };

    std::vector<std::string> texts_;
    std::unordered_map<std::string, std::uint32_t> places_;  // in texts_
    std::vector<Run> runs_;
    std::size_t size_ = 0;
};

// Each rank's text, in rank order. Collective; a rank sends and receives twice the logarithm of the
// number of ranks as messages. What ranks have in common should be a text of its own: see
// SharedTexts.
std::vector<std::string> gather_text(const mpi::Communicator& world, const std::string& mine);

// The texts of a few other ranks, given their distances behind this rank. All ranks give the same
// distances. Collective.
std::vector<std::string> texts_at(const mpi::Communicator& world, const std::vector<int>& distances,
                                  const std::string& mine);

}  // namespace nearstep::mpi
