// Assigns tensors to sets of scalars, and computes these. Used by Step and where devices are made.
#include "engine/route/scalar_sets.hpp"

#include "base/error.hpp"
#include "base/random.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

namespace nearstep::engine {

namespace {

// Differs from the random streams of start values and data.
constexpr std::uint64_t kRoundingStream = 0x726F756E64696E67U;

arith::UpdateScalars update_scalars(const ScalarSet& set, double gradient_scale) {
    const Hyper& hyper = set.hyper;
    const auto t = static_cast<double>(set.update);
    arith::UpdateScalars scalars;
    scalars.gradient_scale = static_cast<float>(gradient_scale);
    scalars.beta1 = static_cast<float>(hyper.beta1);
    scalars.one_minus_beta1 = static_cast<float>(1 - hyper.beta1);
    scalars.beta2 = static_cast<float>(hyper.beta2);
    scalars.one_minus_beta2 = static_cast<float>(1 - hyper.beta2);
    scalars.epsilon = static_cast<float>(hyper.epsilon);
    scalars.optimizer = hyper.optimizer;
    if (arith::has_decoupled_decay(scalars.optimizer)) {
        scalars.decay_factor = static_cast<float>(1 - hyper.rate * hyper.decay);
    } else {
        scalars.gradient_decay = static_cast<float>(hyper.decay);
    }
    scalars.step_size = static_cast<float>(hyper.rate);
    if (arith::corrects_bias(scalars.optimizer)) {
        scalars.step_size = static_cast<float>(hyper.rate / (1 - std::pow(hyper.beta1, t)));
        scalars.root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(hyper.beta2, t)));
    }
    return scalars;
}

// Sets are sorted by group, then by updates. The tensors that a step leaves out are the last set.
struct SetKey {
    std::size_t group = 0;
    std::int64_t update = 0;

    friend bool operator==(const SetKey&, const SetKey&) = default;
    friend bool operator<(const SetKey& a, const SetKey& b) {
        return std::tie(a.group, a.update) < std::tie(b.group, b.update);
    }
};

constexpr std::size_t kSkippedGroup = std::numeric_limits<std::size_t>::max();

std::vector<SetKey> distinct(std::vector<SetKey> keys) {
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    return keys;
}

// Replaces each group by the first one with the same settings.
void merge_equal_groups(std::vector<SetKey>& of_tensor, const std::vector<Hyper>& groups) {
    for (SetKey& key : of_tensor) {
        if (key.group != kSkippedGroup) {
            const auto first = std::ranges::find(groups, groups[key.group]);
            key.group = static_cast<std::size_t>(first - groups.begin());
        }
    }
}

[[noreturn]] void refuse_groups(const std::vector<SetKey>& keys, std::size_t most) {
    throw ConfigError(
        text("The parameter groups of this step have ", keys.size(),
             " different settings (learning rate, betas, epsilon, weight decay, left out), and ",
             most < csd::kMostGroups
                 ? text("cards take ", most, ": let groups share their settings, or set ",
                        "csd.device = \"emulated\", which takes ", csd::kMostGroups, ".")
                 : text("devices take ", most, ": let groups share their settings.")));
}

// Removes the key whose tensors change least if they share the next key's set. Returns false if no
// two keys are of one group.
bool merge_closest(std::vector<SetKey>& keys, const std::vector<Hyper>& groups) {
    std::size_t closest = keys.size();
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i + 1 < keys.size(); ++i) {
        if (keys[i].group != keys[i + 1].group) {
            continue;
        }
        const Hyper& hyper = groups[keys[i].group];
        const double change = std::abs(std::log(bias_correction(hyper, keys[i].update) /
                                                bias_correction(hyper, keys[i + 1].update)));
        if (change < least) {
            least = change;
            closest = i;
        }
    }
    if (closest == keys.size()) {
        return false;
    }
    keys.erase(keys.begin() + static_cast<std::ptrdiff_t>(closest));
    return true;
}

}  // namespace

double bias_correction(const Hyper& hyper, std::int64_t update) {
    const auto t = static_cast<double>(update);
    return std::sqrt(1 - std::pow(hyper.beta2, t)) / (1 - std::pow(hyper.beta1, t));
}

csd::StepScalars step_scalars(std::span<const ScalarSet> sets, std::uint64_t seed,
                              std::int64_t update, double gradient_scale) {
    expects(sets.size() <= csd::kMostGroups, "there are at most 256 sets of scalars");
    csd::StepScalars scalars;
    for (std::size_t i = 0; i < sets.size(); ++i) {
        scalars.of_group.at(i) = update_scalars(sets[i], gradient_scale);
        scalars.is_skipped.at(i) = sets[i].hyper.is_skipped;
    }
    scalars.random_key = random_bits(seed, kRoundingStream, static_cast<std::uint64_t>(update));
    return scalars;
}

std::size_t most_scalar_sets(const config::EngineSettings& settings) {
    const bool has_cards =
        settings.csd.device == config::DeviceKind::xrt && settings.mode != config::Mode::base;
    return has_cards ? csd::kMostGroupsOfCard : csd::kMostGroups;
}

ScalarSets::ScalarSets(const Layout& layout, std::size_t most)
    : most_(most), missed_(layout.tensors.size(), 0), is_skipped_(layout.tensors.size(), false) {
    for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
        const bool is_last = i + 1 == layout.tensors.size();
        ends_.push_back(is_last ? layout.elems : layout.tensors[i + 1].offset);
        groups_.push_back(layout.tensors[i].group);
        set_of_.push_back(groups_.back() % most);
    }
}

bool ScalarSets::begin_step(const StepSettings& step, std::int64_t update) {
    expects(std::ranges::all_of(groups_, [&](std::size_t of) { return of < step.groups.size(); }),
            "a step says what every parameter group does");
    for (std::size_t i = 0; i < groups_.size(); ++i) {
        is_skipped_[i] = step.groups[groups_[i]].is_skipped;
    }
    for (const std::size_t tensor : step.skipped) {
        is_skipped_.at(tensor) = true;
    }
    std::vector<SetKey> of_tensor;
    for (std::size_t i = 0; i < groups_.size(); ++i) {
        const bool counts = corrects_bias(step.groups[groups_[i]].optimizer);
        of_tensor.push_back(is_skipped_[i]
                                ? SetKey{kSkippedGroup, update}
                                : SetKey{groups_[i], update - (counts ? missed_[i] : 0)});
    }
    if (groups_.empty()) {  // a vector without tensors belongs to group 0
        of_tensor.push_back({0, update});
    }
    std::vector<SetKey> keys = distinct(of_tensor);
    if (keys.size() > most_) {
        merge_equal_groups(of_tensor, step.groups);
        keys = distinct(of_tensor);
    }
    while (keys.size() > most_) {
        if (!merge_closest(keys, step.groups)) {
            refuse_groups(keys, most_);
        }
    }
    sets_.clear();
    for (const SetKey& key : keys) {
        sets_.push_back(key.group == kSkippedGroup
                            ? ScalarSet{.hyper = {.is_skipped = true}, .update = key.update}
                            : ScalarSet{.hyper = step.groups.at(key.group), .update = key.update});
    }
    std::vector<std::size_t> set_of;
    for (std::size_t i = 0; i < groups_.size(); ++i) {
        set_of.push_back(static_cast<std::size_t>(
            std::lower_bound(keys.begin(), keys.end(), of_tensor[i]) - keys.begin()));
    }
    const bool has_changed = set_of != set_of_;
    set_of_ = std::move(set_of);
    return has_changed;
}

void ScalarSets::end_step() {
    for (std::size_t i = 0; i < missed_.size(); ++i) {
        missed_[i] += is_skipped_[i] ? 1 : 0;
    }
}

void ScalarSets::miss_update() {
    for (std::int64_t& missed : missed_) {
        ++missed;
    }
}

csd::GroupMap ScalarSets::elements() const {
    if (ends_.empty()) {
        return {};
    }
    std::vector<csd::GroupRun> runs;
    for (std::size_t i = 0; i < ends_.size(); ++i) {
        runs.push_back({.end = ends_[i], .group = set_of_[i]});
    }
    return csd::GroupMap(runs);
}

store::MissedUpdates ScalarSets::missed() const {
    store::MissedUpdates missed = missed_;
    while (!missed.empty() && missed.back() == 0) {
        missed.pop_back();
    }
    return missed;
}

store::MissedUpdates ScalarSets::missed_after_step() const {
    ScalarSets next = *this;
    next.end_step();
    return next.missed();
}

void ScalarSets::restore(const store::MissedUpdates& missed) {
    expects(missed.size() <= missed_.size(), "only tensors of the model missed updates");
    std::ranges::fill(missed_, 0);
    std::ranges::copy(missed, missed_.begin());
}

}  // namespace nearstep::engine
