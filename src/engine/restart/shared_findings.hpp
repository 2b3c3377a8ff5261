// Writes each rank's findings as texts that are equal on most ranks, of which gather_text() sends
// equal texts once. No MPI, so that a test can play many ranks.
#pragma once

#include "engine/restart/decide.hpp"

#include <string>
#include <vector>

namespace nearstep::store {

template <typename Archive>
void list(Archive& archive, Branch& one) {
    archive(one.run, one.step);
}

template <typename Archive>
void list(Archive& archive, Lineage& one) {
    archive(one.run, one.parents);
}

}  // namespace nearstep::store

namespace nearstep::engine {

// A rank's places and, if it is the first rank of its node, what the node sees.
struct SeenByRank {
    RankPlaces places = {};
    std::vector<FoundManifest> manifests = {};
    std::vector<FoundRemains> remains = {};
};

struct RankTexts {
    std::string places = {};
    std::string seen = {};             // without the two below
    std::string programs = {};         // the manifests' records of programs
    std::string manifest_places = {};  // store::Manifest::places
};

// `beside`: the ranks of the node.
RankTexts texts_of(SeenByRank seen, int rank, const std::vector<int>& beside);

// Adds what the ranks see, given the node of each and its texts RankTexts::places and
// RankTexts::seen. What several nodes see alike is added once.
void add_ranks(Findings& found, const std::vector<int>& nodes,
               const std::vector<std::string>& places, const std::vector<std::string>& seen);
// Add what the manifests lack, given each rank's text.
void add_programs(Findings& found, const std::vector<std::string>& of_ranks);
void add_manifest_places(Findings& found, const std::vector<std::string>& of_ranks);
// Puts the manifests of this rank's node, as they were read, in the place of those that were sent.
void keep_own(Findings& found, int rank, std::vector<FoundManifest> own);

}  // namespace nearstep::engine
