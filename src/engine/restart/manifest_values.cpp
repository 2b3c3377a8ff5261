#include "engine/restart/manifest_values.hpp"

#include "base/error.hpp"
#include "engine/placement/layout_line.hpp"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace nearstep::engine {

namespace {

std::vector<std::string> names_of_files(const LayoutValues& layout, store::RankFileName of) {
    const int devices = layout.devices[static_cast<std::size_t>(of.rank)];
    std::vector<std::string> names;
    names.reserve(static_cast<std::size_t>(devices));
    for (int device = 0; device < devices; ++device) {
        names.push_back(store::state_file_name(of.rank, device, of.set));
    }
    return names;
}

}  // namespace

std::string fault_of(store::Manifest& manifest, store::RankFileName name) {
    const std::optional<LayoutValues> layout = parse_layout(manifest.layout);
    if (!layout) {
        return "no run has its layout";
    }
    if (name.rank >= layout->ranks) {
        return text("its run had ", layout->ranks, " ranks");
    }
    std::vector<std::string> files = names_of_files(*layout, name);
    if (!manifest.files.empty() && manifest.files != files) {
        return "it names files that are not the rank's state files";
    }
    const std::vector<int>& copy = manifest.copy;
    if (!copy.empty() &&
        (std::ranges::adjacent_find(copy, std::greater_equal<>()) != copy.end() ||
         copy.back() >= layout->ranks || !std::ranges::binary_search(copy, name.rank))) {
        return "it names ranks that cannot hold a copy";
    }
    if (!manifest.places.empty() &&
        manifest.places.size() != static_cast<std::size_t>(layout->ranks)) {
        return text("it has the places of ", manifest.places.size(), " ranks, not of ",
                    layout->ranks);
    }
    manifest.files = std::move(files);
    return "";
}

}  // namespace nearstep::engine
