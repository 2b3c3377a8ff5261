// Settles the groups of ranks of a placement. Called where a run's ranks and nodes are known.
#include "config/group_size.hpp"

#include "base/error.hpp"
#include "base/wording.hpp"
#include "config/checks.hpp"
#include "config/engine_settings.hpp"
#include "config/value.hpp"

#include <algorithm>

namespace nearstep::config {

namespace {

// "placement.optimizer = "node" (2 ranks)".
std::string given(const char* key, const GroupSize& size, int ranks) {
    const std::string words = text(name_of_key(key), " = ", size.written());
    return size.written() == std::to_string(ranks)
               ? words
               : text(words, " (", ranks, ranks == 1 ? " rank)" : " ranks)");
}

void check_group(const std::string& group, int ranks, const RankCounts& counts) {
    if (!counts.has_equal_nodes) {
        refuse_if(ranks != 1 && ranks != counts.of_node && ranks != counts.all,
                  text(group, " cannot be formed on nodes of unequal numbers of ranks: give ",
                       R"("replicated", "node" or "global".)"));
        return;
    }
    refuse_if(counts.all % ranks != 0, text(group, " does not divide the ", counts.all,
                                            " ranks that compute: give a number that does."));
    const bool fits =
        ranks <= counts.of_node ? counts.of_node % ranks == 0 : ranks % counts.of_node == 0;
    refuse_if(!fits, text(group, " straddles nodes of ", counts.of_node,
                          " ranks: give a number that divides these, or whole nodes."));
}

void check_nesting(const std::string& inner, int of_inner, const std::string& outer, int of_outer,
                   const RankCounts& counts) {
    const bool nests =
        of_inner <= of_outer && (of_outer % of_inner == 0 || !counts.has_equal_nodes);
    refuse_if(!nests,
              text(outer, " is not made of whole groups of ", inner,
                   ": spread the optimizer state over a multiple of the ranks that gradients are "
                   "summed over, and these over a multiple of those that hold the parameters."));
}

struct Extents {
    bool parameters_span_nodes = false;
    bool gradients_span_nodes = false;
    bool has_copies = false;  // of the state
};

// Refuses combinations of group sizes with other keys that do not go together.
void check_company(const EngineSettings& settings, const std::string& parameters,
                   const std::string& gradients, const std::string& optimizer,
                   const Extents& extents) {
    const std::string storage = text("csd.storage_ranks = ", settings.csd.storage_ranks);
    const bool has_storage = settings.csd.storage_ranks > 0;
    refuse_if(has_storage && extents.has_copies,
              text(optimizer, " does not go with ", storage,
                   R"(, which hold one copy of the state for all: set it to "global".)"));
    refuse_if(has_storage && extents.parameters_span_nodes,
              text(parameters, " does not go with ", storage,
                   ", because ranks of several nodes keep the parameters that their devices own: "
                   R"(set placement.parameters = "node" or fewer ranks.)"));
    refuse_if(settings.gather.codec == ParameterCodec::delta && extents.parameters_span_nodes,
              text(parameters, R"( does not go with gather.codec = "delta", because parameters )",
                   "that several nodes hold together are gathered anew for every block: set ",
                   R"(gather.codec = "dense", or placement.parameters = "node".)"));
    refuse_if(settings.compress.error_feedback && extents.gradients_span_nodes,
              text(gradients, " does not go with compress.error_feedback = true, which feeds back ",
                   R"(what a node's sum lost: set it to false, or placement.gradients = "node".)"));
}

}  // namespace

std::string GroupSize::written() const {
    const auto* word = std::get_if<GroupWord>(&asked_);
    return word == nullptr ? std::to_string(std::get<int>(asked_))
                           : config::written(std::string_view(name_of(*word)));
}

std::optional<int> GroupSize::in(const RankCounts& counts) const {
    if (const auto* number = std::get_if<int>(&asked_)) {
        return *number;
    }
    switch (std::get<GroupWord>(asked_)) {
        case GroupWord::replicated:
            return 1;
        case GroupWord::node:
            return counts.of_node;
        case GroupWord::global:
            return counts.all;
        case GroupWord::automatic:
            break;
    }
    return std::nullopt;
}

int GroupSize::ranks() const {
    expects(ranks_ > 0, "the placement is resolved for the run's ranks");
    return ranks_;
}

bool GroupSize::is_shared() const {
    return ranks() > 1 || *this == GroupWord::node || *this == GroupWord::global;
}

GroupSize GroupSize::resolved(int ranks) const {
    GroupSize size = *this;
    size.ranks_ = ranks;
    return size;
}

Placement resolved_placement(const EngineSettings& settings, const RankCounts& counts) {
    const Placement& asked = settings.placement;
    const int parameters = asked.parameters.in(counts).value_or(1);
    const int optimizer = asked.optimizer.in(counts).value_or(counts.all);
    const int gradients = asked.gradients.in(counts).value_or(
        std::min(std::max(counts.of_node, parameters), optimizer));
    const std::string of_parameters = given("placement.parameters", asked.parameters, parameters);
    const std::string of_gradients = given("placement.gradients", asked.gradients, gradients);
    const std::string of_optimizer = given("placement.optimizer", asked.optimizer, optimizer);
    check_group(of_optimizer, optimizer, counts);
    check_group(of_gradients, gradients, counts);
    check_group(of_parameters, parameters, counts);
    check_nesting(of_parameters, parameters, of_gradients, gradients, counts);
    check_nesting(of_gradients, gradients, of_optimizer, optimizer, counts);
    check_company(settings, of_parameters, of_gradients, of_optimizer,
                  {.parameters_span_nodes = parameters > counts.of_node,
                   .gradients_span_nodes = gradients > counts.of_node,
                   .has_copies = optimizer < counts.all});
    return {.parameters = asked.parameters.resolved(parameters),
            .gradients = asked.gradients.resolved(gradients),
            .optimizer = asked.optimizer.resolved(optimizer)};
}

}  // namespace nearstep::config
