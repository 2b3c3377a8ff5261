// Writes what a rank found as texts, and reads those of all ranks. Used by the search.
#include "engine/restart/shared_findings.hpp"

#include "base/number_list.hpp"
#include "base/packed.hpp"
#include "engine/restart/folder_search.hpp"

#include <algorithm>
#include <charconv>
#include <map>
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

// Calls `work` with the value of each manifest that a rank's text has, and with that manifest.
template <typename Value, typename Work>
void each_of(Findings& found, const std::vector<std::string>& of_ranks, Work work) {
    auto manifest = found.manifests.begin();
    for (const std::string& text_of_rank : of_ranks) {
        std::vector<Value> values;
        unpack(text_of_rank, values);
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
    texts.seen = packed(counts_from_rank, found_alike(seen.manifests, base),
                        found_alike(seen.remains, base));
    return texts;
}

void add_rank(Findings& found, int node, const RankTexts& texts) {
    const auto rank = static_cast<int>(found.ranks.size());
    SeenByRank seen;
    bool counts_from_rank = false;
    std::vector<FoundAlike> manifests;
    std::vector<FoundAlike> remains;
    unpack(texts.places, seen.places.manifests, seen.places.files);
    unpack(texts.seen, counts_from_rank, manifests, remains);
    const int base = counts_from_rank ? rank : 0;
    seen.manifests = found_apart<FoundManifest>(manifests, base);
    sort_by_rank(seen.manifests);
    seen.remains = found_apart<FoundRemains>(remains, base);
    Relative(rank, 1).apply(seen.places);
    seen.places.node = node;
    found.ranks.push_back(std::move(seen.places));
    for (FoundManifest& one : seen.manifests) {
        one.node = node;
        found.manifests.push_back(std::move(one));
    }
    for (FoundRemains& one : seen.remains) {
        one.node = node;
        found.remains.push_back(std::move(one));
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

void keep_own(Findings& found, int node, std::vector<FoundManifest> own) {
    auto next = own.begin();
    for (FoundManifest& one : found.manifests) {
        if (one.node == node && next != own.end()) {
            one = std::move(*next);
            one.node = node;
            ++next;
        }
    }
}

}  // namespace nearstep::engine
