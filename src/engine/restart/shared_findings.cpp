// Writes what a rank found as texts, and reads those of all ranks. Used by the search.
#include "engine/restart/shared_findings.hpp"

#include "base/digest.hpp"
#include "base/number_list.hpp"
#include "base/packed.hpp"
#include "engine/restart/folder_search.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <span>
#include <string_view>
#include <utility>

namespace nearstep::store {

template <typename Archive>
void list(Archive& archive, Commit& one) {
    archive(one.step, one.generation, one.loss_scale, one.good_steps, one.norm, one.missed);
}

template <typename Archive>
void list(Archive& archive, Manifest& one) {
    archive(one.line, one.model, one.layout, one.seed, one.data, one.dtype, one.threads, one.steps,
            one.state, one.replaces, one.files, one.copy, one.commits);
}

}  // namespace nearstep::store

namespace nearstep::engine {

template <typename Archive>
void list(Archive& archive, FoundManifest& one) {
    archive(one.path, one.rank, one.set, one.manifest, one.damage, one.is_of_newer_version,
            one.files, one.programs);
}

template <typename Archive>
void list(Archive& archive, FoundRemains& one) {
    archive(one.path, one.generation);
}

namespace {

struct RankPlace {
    int rank = 0;
    std::string place = {};
};

template <typename Archive>
void list(Archive& archive, RankPlace& one) {
    archive(one.rank, one.place);
}

// Most ranks have the same names of files but for the rank in them. Counted from that rank, they
// are equal. `sign` is -1 to count from `base`, and 1 to count from 0 again.
class Relative {
public:
    Relative(int base, int sign) : base_(base), sign_(sign) {}

    void apply(FoundManifest& one) const {
        one.rank += sign_ * base_;
        apply(one.path);
        apply(one.files);
        apply(one.programs);
        if (one.manifest) {
            apply(one.manifest->files);
        }
    }
    void apply(FoundRemains& one) const { apply(one.path); }
    void apply(RankPlaces& places) const {
        std::ranges::for_each(places.manifests, [&](std::string& path) { apply(path); });
        std::ranges::for_each(places.files, [&](auto& files) { apply(files); });
    }

private:
    void apply(std::vector<std::string>& paths) const {
        std::ranges::for_each(paths, [&](std::string& path) { apply(path); });
    }

    // "FOLDER/rank-12.manifest": the number is a rank.
    void apply(std::string& path) const {
        constexpr std::string_view kPrefix = "rank-";
        const std::size_t name = path.rfind('/') + 1;
        if (path.compare(name, kPrefix.size(), kPrefix) != 0) {
            return;
        }
        const std::size_t begin = name + kPrefix.size();
        const std::size_t end = path.find('.', begin);
        int rank = 0;
        std::from_chars(path.data() + begin, path.data() + std::min(end, path.size()), rank);
        path.replace(begin, end - begin, std::to_string(rank + sign_ * base_));
    }

    int base_;
    int sign_;
};

// A finding that several ranks have alike, with names of files that count from the rank.
struct FoundAlike {
    std::string text = {};
    std::vector<NumberRange> ranks = {};
};

template <typename Archive>
void list(Archive& archive, FoundAlike& one) {
    archive(one.text, one.ranks);
}

int rank_of(const FoundManifest& one) { return one.rank; }

int rank_of(const FoundRemains& one) {
    const auto name = store::parse_state_file_name(one.path.substr(one.path.rfind('/') + 1));
    return name ? name->rank : 0;
}

// Each text once, however many ranks it is of. Ranks count from `base`.
template <typename Found>
std::vector<FoundAlike> found_alike(const std::vector<Found>& all, int base) {
    std::map<std::string, std::vector<int>> ranks_of;
    for (Found one : all) {
        const int rank = rank_of(one);
        Relative(rank, -1).apply(one);
        ranks_of[packed(one)].push_back(rank - base);
    }
    std::vector<FoundAlike> alike;
    for (auto& [text, ranks] : ranks_of) {
        std::ranges::sort(ranks);
        alike.push_back({text, ranges_of(ranks)});
    }
    return alike;
}

template <typename Found>
std::vector<Found> found_apart(const std::vector<FoundAlike>& alike, int base) {
    std::vector<Found> all;
    for (const FoundAlike& one : alike) {
        for (const int rank : numbers_in(one.ranks)) {
            unpack(one.text, all.emplace_back());
            Relative(rank + base, 1).apply(all.back());
        }
    }
    return all;
}

// Whether all manifests are of the node's own ranks. A folder that several nodes share
// has those of all ranks: then the nodes see the same if ranks count from 0.
bool is_of_node(const SeenByRank& seen, const std::vector<int>& beside) {
    return std::ranges::all_of(seen.manifests, [&](const FoundManifest& one) {
        return std::ranges::binary_search(beside, one.rank);
    });
}

// Two nodes may have files of the same names that are not the same files.
std::uint64_t identity_of(const SeenByRank& seen, const RankTexts& texts) {
    std::vector<std::uint64_t> inodes;
    for (const FoundManifest& one : seen.manifests) {
        inodes.push_back(one.inode);
    }
    const std::string all = packed(inodes, texts.programs, texts.manifest_places);
    return xxh3(std::as_bytes(std::span(all)));
}

// Calls `work` with the value of each manifest that a rank's text has, and with that manifest.
template <typename Value, typename Work>
void each_of(Findings& found, const std::vector<std::string>& of_ranks, Work work) {
    auto manifest = found.manifests.begin();
    for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
        if (found.ranks[rank].alike >= 0) {
            continue;
        }
        std::vector<Value> values;
        unpack(of_ranks[rank], values);
        for (Value& value : values) {
            manifest = std::find_if(manifest, found.manifests.end(),
                                    [](const FoundManifest& one) { return one.manifest; });
            expects(manifest != found.manifests.end(), "each value is of a manifest");
            work(std::move(value), *manifest->manifest);
            ++manifest;
        }
    }
}

}  // namespace

RankTexts texts_of(SeenByRank seen, int rank, const std::vector<int>& beside) {
    RankTexts texts;
    std::vector<std::vector<store::ProgramRecord>> programs;
    std::vector<std::vector<RankPlace>> places;
    for (const FoundManifest& one : seen.manifests) {
        if (one.manifest) {
            programs.push_back(one.manifest->programs);
            std::vector<RankPlace>& known = places.emplace_back();
            for (const auto& [other, place] : one.manifest->places) {
                known.push_back({other, place});
            }
        }
    }
    texts.programs = packed(programs);
    texts.manifest_places = packed(places);
    const bool counts_from_rank = is_of_node(seen, beside);
    const int base = counts_from_rank ? rank : 0;
    Relative(rank, -1).apply(seen.places);
    texts.places = packed(seen.places.manifests, seen.places.files);
    const std::uint64_t identity = counts_from_rank ? 0 : identity_of(seen, texts);
    texts.seen = packed(identity, counts_from_rank, found_alike(seen.manifests, base),
                        found_alike(seen.remains, base));
    return texts;
}

namespace {

// Adds what the node of that rank sees. Returns whether that is of its own ranks alone.
bool add_seen(Findings& found, int node, int rank, const std::string& seen) {
    std::uint64_t identity = 0;
    bool counts_from_rank = false;
    std::vector<FoundAlike> manifests;
    std::vector<FoundAlike> remains;
    unpack(seen, identity, counts_from_rank, manifests, remains);
    const int base = counts_from_rank ? rank : 0;
    std::vector<FoundManifest> of_node = found_apart<FoundManifest>(manifests, base);
    sort_by_rank(of_node);
    for (FoundManifest& one : of_node) {
        one.node = node;
        found.manifests.push_back(std::move(one));
    }
    for (FoundRemains& one : found_apart<FoundRemains>(remains, base)) {
        one.node = node;
        found.remains.push_back(std::move(one));
    }
    return counts_from_rank;
}

}  // namespace

void add_ranks(Findings& found, const std::vector<int>& nodes,
               const std::vector<std::string>& places, const std::vector<std::string>& seen) {
    std::map<std::string_view, int> first_nodes;  // that see what a text says
    std::map<int, int> alike;                     // per node
    for (std::size_t i = 0; i < seen.size(); ++i) {
        const auto rank = static_cast<int>(i);
        const int node = nodes[i];
        RankPlaces& of_rank = found.ranks.emplace_back();
        unpack(places[i], of_rank.manifests, of_rank.files);
        Relative(rank, 1).apply(of_rank);
        of_rank.node = node;
        if (alike.count(node) == 0) {  // the first rank of its node
            const auto first = first_nodes.find(seen[i]);
            alike[node] = first == first_nodes.end() ? -1 : first->second;
            if (alike[node] < 0 && !add_seen(found, node, rank, seen[i])) {
                first_nodes.emplace(seen[i], node);
            }
        }
        of_rank.alike = alike[node];
    }
}

void add_programs(Findings& found, const std::vector<std::string>& of_ranks) {
    each_of<std::vector<store::ProgramRecord>>(
        found, of_ranks,
        [](auto programs, store::Manifest& manifest) { manifest.programs = std::move(programs); });
}

void add_manifest_places(Findings& found, const std::vector<std::string>& of_ranks) {
    each_of<std::vector<RankPlace>>(found, of_ranks, [](auto places, store::Manifest& manifest) {
        for (RankPlace& one : places) {
            manifest.places.insert_or_assign(one.rank, std::move(one.place));
        }
    });
}

void keep_own(Findings& found, int rank, std::vector<FoundManifest> own) {
    const int view = found.ranks[static_cast<std::size_t>(rank)].view();
    auto next = own.begin();
    for (FoundManifest& one : found.manifests) {
        if (one.node == view && next != own.end()) {
            one = std::move(*next);
            one.node = view;
            ++next;
        }
    }
}

}  // namespace nearstep::engine
