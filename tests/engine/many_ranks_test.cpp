// Counts what a restart of many ranks sends, keeps and computes, with the exchange played in one
// process. Prints a line for each number of ranks: those in docs/results/data/restart_texts.jsonl.
#include "engine/placement/layout_line.hpp"
#include "engine/restart/decide.hpp"
#include "engine/restart/shared_findings.hpp"
#include "mpi/gathered_text.hpp"
#include "support/test.hpp"

#include <bit>
#include <ctime>
#include <iterator>
#include <numeric>

namespace nearstep::engine {
namespace {

constexpr int kRanksPerNode = 8;
constexpr int kDrives = 8;

std::string layout_of(int ranks, int per_node) {
    std::string ones;
    std::string nodes;
    for (int rank = 0; rank < ranks; ++rank) {
        ones += rank == 0 ? "1" : ",1";
        nodes += text(rank == 0 ? "" : ",", rank / per_node);
    }
    return brief_layout(text("ranks=", ranks, " devices=", ones, " speeds=", ones,
                             " subgroup_tiles=4 update=storage state=fp32 nodes=", nodes,
                             " tiles_xxh3=0123456789abcdef"));
}

std::string folder_of(int rank) { return text("/mnt/nvme", rank % kDrives, "/run-of-llama"); }

FoundManifest manifest_of(int rank, int ranks, int per_node, const std::string& layout) {
    const std::string name = text("rank-", rank, ".device-0.state");
    store::Manifest manifest{
        .line = {.run = "0123456789abcdef"},
        .model = "kind=llama layers=32 width=4096 heads=32 vocabulary=32000",
        .layout = layout,
        .data = "00000000000000dd",
        .dtype = "bf16",
        .steps = 1000,
        .state = "cccccccccccccccc",
        .files = {name},
        .commits = {{.step = 7, .generation = 7}, {.step = 6, .generation = 6}}};
    for (const int other : store::ranks_placed_by(rank, ranks)) {
        manifest.places[other] = text("node", 1000 + other / per_node, " ", folder_of(other));
    }
    return {.path = text(folder_of(rank), "/", store::manifest_name(rank, 0)),
            .rank = rank,
            .manifest = manifest,
            .files = {text(folder_of(rank), "/", name)}};
}

enum class Folders { of_nodes, shared };

// Returns what each rank would see where `lost` is the rank of a manifest that is gone; -1: none
// is.
std::vector<SeenByRank> seen_by(int ranks, int lost, int per_node,
                                Folders folders = Folders::of_nodes) {
    const std::string layout = layout_of(ranks, per_node);
    std::vector<SeenByRank> seen(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
        RankPlaces& places = seen[static_cast<std::size_t>(rank)].places;
        for (int set = 0; set < kSets; ++set) {
            const auto at = static_cast<std::size_t>(set);
            places.manifests.at(at) = text(folder_of(rank), "/", store::manifest_name(rank, set));
            places.files.at(at) = {
                text(folder_of(rank), "/", store::state_file_name(rank, 0, set))};
        }
        if (rank != lost) {
            const bool is_shared = folders == Folders::shared;
            const int own = rank - rank % per_node;
            for (int first = is_shared ? 0 : own; first < (is_shared ? ranks : own + 1);
                 first += per_node) {
                seen[static_cast<std::size_t>(first)].manifests.push_back(
                    manifest_of(rank, ranks, per_node, layout));
            }
        }
    }
    return seen;
}

// The bytes that the last rank receives in gather_text().
std::size_t bytes_received(const std::vector<std::string>& of_ranks) {
    std::size_t bytes = 0;
    const std::size_t ranks = of_ranks.size();
    for (std::size_t distance = 1; distance < ranks; distance *= 2) {
        mpi::SharedTexts sent;
        for (std::size_t i = 0; i < std::min(distance, ranks - distance); ++i) {
            sent.add(of_ranks[ranks - 1 - distance - i]);
        }
        bytes += sent.packed_first(sent.size()).size();
    }
    return bytes;
}

struct Played {
    Findings found = {};
    std::size_t bytes = 0;
    double cpu_s = 0;  // of one rank, from the texts to the decision
};

Played play(int ranks, int lost, int per_node, std::vector<SeenByRank> all_seen) {
    std::vector<std::string> hosts;
    std::vector<std::string> places;
    std::vector<std::string> seen;
    std::vector<std::string> manifest_places;
    std::vector<int> beside(static_cast<std::size_t>(per_node));
    int rank = 0;
    std::vector<int> nodes;
    for (SeenByRank& one : all_seen) {
        std::iota(beside.begin(), beside.end(), rank - rank % per_node);
        RankTexts texts = texts_of(std::move(one), rank, beside);
        const bool is_first = rank % per_node == 0;
        hosts.push_back(is_first ? text("node", 1000 + rank / per_node) : "");
        places.push_back(std::move(texts.places));
        seen.push_back(std::move(texts.seen));
        manifest_places.push_back(std::move(texts.manifest_places));
        nodes.push_back(rank / per_node);
        ++rank;
    }
    Played played{.bytes = bytes_received(hosts) + bytes_received(places) + bytes_received(seen)};
    const std::clock_t begin = std::clock();
    Findings& found = played.found;
    const std::string layout = layout_of(ranks, per_node);
    std::ranges::copy_if(hosts, std::back_inserter(found.hosts),
                         [](const std::string& host) { return !host.empty(); });
    add_ranks(found, nodes, places, seen);
    for (RankPlaces& one : found.ranks) {
        one.layout = layout;
    }
    if (lost >= 0) {
        played.bytes += bytes_received(manifest_places);
        add_manifest_places(found, manifest_places);
    }
    found.model = found.manifests.front().manifest->model;
    found.request = {.kind = StartRequest::Kind::resume};
    found.computing = ranks;
    decide(found);
    played.cpu_s = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    return played;
}

Played play(int ranks, int lost, int per_node = kRanksPerNode) {
    return play(ranks, lost, per_node, seen_by(ranks, lost, per_node));
}

TEST(ManyRanks, ManifestsGrowWithTheLogarithmAndTextsByAFewBytesOfARank) {
    for (const int ranks : {64, 1024, 4096, 16384}) {
        const Played played = play(ranks, -1);
        const std::size_t manifest =
            store::print_manifest(
                *manifest_of(0, ranks, kRanksPerNode, layout_of(ranks, kRanksPerNode)).manifest)
                .size();
        printf(
            "{\"ranks\": %d, \"manifest_bytes\": %zu, \"bytes_per_rank\": %zu, "
            "\"cpu_s_per_rank\": %.3f}\n",
            ranks, manifest, played.bytes, played.cpu_s);
        EXPECT_LT(manifest, 2048U);
        // In each round the texts come once; a rank has the number of one, and each node a name.
        EXPECT_LT(played.bytes,
                  8'000U * static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(ranks))) +
                      16U * static_cast<std::size_t>(ranks));
        const Decision decision = decide(played.found);
        EXPECT_EQ(decision.action, Action::resume_state);
        EXPECT_EQ(decision.manifests.size(), static_cast<std::size_t>(ranks));
    }
}

// A text travels once for each folder of a host, and not for each of its ranks.
TEST(ManyRanks, RanksOfOneHostAddNoTexts) {
    const Played few = play(16, -1, 16);
    const Played many = play(256, -1, 256);
    EXPECT_LT(many.bytes, few.bytes + 240 * 64);  // numbers of texts that ranks have in common
    EXPECT_EQ(decide(many.found).manifests.size(), 256U);
}

TEST(ManyRanks, WhatAllNodesSeeInASharedFolderIsKeptOnce) {
    constexpr int kRanks = 256;
    for (const int lost : {-1, 17}) {
        const Findings found =
            play(kRanks, lost, kRanksPerNode, seen_by(kRanks, lost, kRanksPerNode, Folders::shared))
                .found;
        EXPECT_EQ(found.manifests.size(), static_cast<std::size_t>(lost < 0 ? kRanks : kRanks - 1));
        EXPECT_EQ(decide(found).action, lost < 0 ? Action::resume_state : Action::refuse);
    }
}

TEST(ManyRanks, FilesOfTheSameNamesOnTwoNodesAreTwoFiles) {
    std::vector<SeenByRank> seen = seen_by(16, -1, kRanksPerNode, Folders::shared);
    for (FoundManifest& one : seen[kRanksPerNode].manifests) {
        one.inode += 1;
    }
    const Findings found = play(16, -1, kRanksPerNode, seen).found;
    EXPECT_EQ(found.manifests.size(), 32U);
    EXPECT_EQ(found.ranks[kRanksPerNode].view(), 1);
}

TEST(ManyRanks, TheFindingsAreThoseThatTheRanksHad) {
    std::vector<SeenByRank> seen = seen_by(16, 3, kRanksPerNode);
    const Findings found = play(16, 3).found;
    std::vector<FoundManifest> all;
    for (const SeenByRank& one : seen) {
        all.insert(all.end(), one.manifests.begin(), one.manifests.end());
    }
    ASSERT_EQ(found.manifests.size(), all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(found.manifests[i].path, all[i].path);
        EXPECT_EQ(found.manifests[i].rank, all[i].rank);
        EXPECT_EQ(found.manifests[i].files, all[i].files);
        EXPECT_EQ(found.manifests[i].manifest, all[i].manifest);
    }
    for (std::size_t rank = 0; rank < seen.size(); ++rank) {
        EXPECT_EQ(found.ranks[rank].manifests, seen[rank].places.manifests);
        EXPECT_EQ(found.ranks[rank].files, seen[rank].places.files);
    }
}

TEST(ManyRanks, ALostManifestIsNamedWithItsPlace) {
    const Findings found = play(1024, 517).found;
    const Decision decision = decide(found);
    ASSERT_EQ(decision.refusal.missing.size(), 1U);
    EXPECT_EQ(decision.refusal.missing[0].place,
              "node1064 /mnt/nvme5/run-of-llama/rank-517.manifest");
    EXPECT_THAT(in_words(decision.refusal, found), HasSubstr("and 1015 more"));
    EXPECT_LT(in_words(decision.refusal, found).size(), 4000U);
}

}  // namespace
}  // namespace nearstep::engine
