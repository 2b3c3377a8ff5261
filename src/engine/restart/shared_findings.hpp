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

// Adds what the next rank sees. The node is that of the rank.
void add_rank(Findings& found, int node, const RankTexts& texts);
// Add what the manifests lack, given each rank's text.
void add_programs(Findings& found, const std::vector<std::string>& of_ranks);
void add_manifest_places(Findings& found, const std::vector<std::string>& of_ranks);
// Puts the manifests of this node, as they were read, in the place of those that were sent.
void keep_own(Findings& found, int node, std::vector<FoundManifest> own);

}  // namespace nearstep::engine
