// Chooses among variants compiled for several instruction sets.
#pragma once

#include "base/error.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace nearstep::bench {

// The variants named by `option`; if none is named, the last of `all`, which is the fastest. Throws
// ConfigError.
template <typename Variant>
std::vector<Variant> variants_named(const std::string& option,
                                    const std::vector<std::string>& names,
                                    const std::vector<Variant>& all) {
    if (names.empty()) {
        return {all.back()};
    }
    std::vector<Variant> chosen;
    for (const std::string& name : names) {
        const auto found =
            std::ranges::find_if(all, [&](const Variant& variant) { return name == variant.name; });
        if (found == all.end()) {
            std::string listed;
            for (const Variant& variant : all) {
                listed += text(listed.empty() ? "" : ", ", variant.name);
            }
            throw ConfigError(text(option, " ", name,
                                   " is not among those of this CPU: use one of ", listed, "."));
        }
        chosen.push_back(*found);
    }
    return chosen;
}

}  // namespace nearstep::bench
