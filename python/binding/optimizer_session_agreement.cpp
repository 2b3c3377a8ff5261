// Checks what all ranks of an optimizer must have alike, at the start and in each step. Called by
// the session's other files.
#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/packed.hpp"
#include "config/load.hpp"
#include "config/value.hpp"
#include "python/binding/optimizer_session.hpp"

#include <algorithm>
#include <iterator>

namespace nearstep::python {

// A rank that serves has those that rank 0 has told it.
mpi::NamedValues OptimizerSession::values_of_all(const engine::StartRequest& request) const {
    mpi::NamedValues values = plan_.of_program;
    values.push_back({"what to begin with", request.in_words()});
    std::ranges::move(config::values_of_run(run_), std::back_inserter(values));
    values.push_back({"the model", plan_.model});
    const std::string shapes = packed(plan_.tensors, plan_.tensors_of_blocks);
    values.push_back({"the digest of names, shapes and groups of the parameters",
                      to_hex(xxh3(std::as_bytes(std::span(shapes))))});
    return values;
}

std::uint64_t OptimizerSession::digest_of(const engine::StepSettings& step) {
    std::vector<double> values = {step.clip_norm};
    for (const engine::Hyper& group : step.groups) {
        values.insert(values.end(), {static_cast<double>(group.optimizer), group.rate, group.beta1,
                                     group.beta2, group.epsilon, group.decay});
    }
    return xxh3(std::as_bytes(std::span(values)));
}

namespace {

mpi::NamedValues values_of(const engine::StepSettings& step) {
    mpi::NamedValues values = {{"clip_norm", config::written(step.clip_norm)}};
    for (std::size_t i = 0; i < step.groups.size(); ++i) {
        const engine::Hyper& group = step.groups[i];
        const auto add = [&](const char* name, const std::string& value) {
            values.push_back({text(name, " of parameter group ", i), value});
        };
        add("optimizer", name_of(group.optimizer));
        add("lr", config::written(group.rate));
        add("the first beta or momentum", config::written(group.beta1));
        add("the second beta", config::written(group.beta2));
        add("eps", config::written(group.epsilon));
        add("weight_decay", config::written(group.decay));
    }
    return values;
}

}  // namespace

void OptimizerSession::refuse_unequal(const engine::StepSettings& step) const {
    mpi::refuse_unequal(
        *world_, values_of(step),
        text("The ranks take step ", engine().steps_done() + 1, " with different settings"),
        "give the parameter groups the same on all ranks, such as by a scheduler "
        "that follows the mean loss of all ranks");
}

// One sum counts, for each tensor, the ranks that have a gradient of it, then those that give the
// step up, and those that have each bit of the digest.
OptimizerSession::Presence OptimizerSession::presence_on_all(const std::vector<std::size_t>& absent,
                                                             bool is_given_up,
                                                             std::uint64_t digest) const {
    const std::size_t tensors = layout_.tensors.size();
    std::vector<std::uint64_t> counts(tensors, serves() ? 0 : 1);
    for (const std::size_t tensor : absent) {
        counts.at(tensor) = 0;
    }
    counts.push_back(is_given_up ? 1 : 0);
    std::ranges::copy(mpi::counts_of(digest), std::back_inserter(counts));
    world_->sum(std::span(counts));
    Presence presence{
        .skipped = {},
        .is_given_up = counts[tensors] > 0,
        .is_alike = mpi::are_equal(std::span(counts).subspan(tensors + 1), world_->size())};
    for (std::size_t tensor = 0; tensor < tensors; ++tensor) {
        if (counts[tensor] == 0) {
            presence.skipped.push_back(tensor);
        }
    }
    return presence;
}

}  // namespace nearstep::python
