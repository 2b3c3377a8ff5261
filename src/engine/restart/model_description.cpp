// Called by decide.cpp.
#include "engine/restart/model_description.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

namespace nearstep::engine {

namespace {

std::vector<std::string> parts_of(const std::string& model) {
    std::vector<std::string> parts;
    for (std::size_t at = 0; at <= model.size();) {
        const std::size_t end = std::min(model.find(", ", at), model.size());
        parts.push_back(model.substr(at, end - at));
        at = end + 2;
    }
    return parts;
}

}  // namespace

std::string difference_of(const std::string& model, const std::string& wanted) {
    const std::vector<std::string> theirs = parts_of(model);
    const std::vector<std::string> ours = parts_of(wanted);
    std::array<std::string, 2> different;
    for (std::size_t i = 0; i < theirs.size() && theirs.size() == ours.size(); ++i) {
        if (theirs[i] != ours[i]) {
            different[0] += (different[0].empty() ? "" : ", ") + theirs[i];
            different[1] += (different[1].empty() ? "" : ", ") + ours[i];
        }
    }
    return different[0].empty() ? text(model, ", not ", wanted)
                                : text(different[0], ", not ", different[1]);
}

bool is_of_model(const std::string& model, const std::string& wanted) {
    return model == wanted || model == wanted.substr(0, wanted.rfind(", moments of "));
}

}  // namespace nearstep::engine
