// A step of a session: gradients to the engine, parameters back, and what the program changes
// between two steps. Called by Conductor and, on ranks that serve, by Server.
#include "base/digest.hpp"
#include "base/error.hpp"
#include "memory/gpu.hpp"
#include "python/binding/optimizer_session.hpp"
#include "shard/tile.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace nearstep::python {

void OptimizerSession::run(const BeginStepCall& call) {
    begun_.lap();
    const Presence presence = presence_on_all(call.absent, call.is_given_up, digest_of(call.step));
    is_void_ = presence.is_given_up;
    if (!is_void_ && !presence.is_alike) {
        refuse_unequal(call.step);
    }
    if (!is_void_) {
        engine::StepSettings of_all = call.step;
        of_all.skipped = presence.skipped;
        engine().begin_backward(of_all);
    }
}

void OptimizerSession::run(const ExpectCall& /*call*/) { engine().expect_backward(); }

// A rank that serves has no gradients.
void OptimizerSession::run(const PutCall& call) {
    if (serves()) {
        engine().put_gradient(call.block);
        return;
    }
    if (facts_.encodes_on_gpu) {
        gradient_stream_.wait_for(call.made);
    }
    std::vector<shard::GradientPart> parts;
    parts.reserve(call.pieces.size());
    for (const TensorMemory& piece : call.pieces) {
        const std::size_t tensor = first_tensors_[call.block] + parts.size();
        parts.push_back({piece.address, piece.dtype, elems_of(layout_.tensors[tensor])});
    }
    engine().put_gradient(call.block, {.parts = parts, .factor = call.factor});
}

void OptimizerSession::keep(const std::string& about,
                            std::span<const std::span<const std::byte>> pieces, CUevent_st* made) {
    if (made != nullptr) {
        gradient_stream_.wait_for(made);
        gradient_stream_.wait();
    }
    program_ = about;
    for (const std::span<const std::byte> piece : pieces) {
        program_.append(reinterpret_cast<const char*>(piece.data()), piece.size());  // NOLINT
    }
}

void OptimizerSession::keep_program(std::int64_t step) {
    engine().keep_program(step, std::as_bytes(std::span(program_)));
    program_.clear();
}

// The step counts as durable when all ranks name it, which a rank learns by waiting for them. They
// wait for each other at the next step's begin, too.
void OptimizerSession::make_durable(std::int64_t step) {
    if (!engine().commits_early()) {
        keep_program(step);
    }
    engine().commit();
    if (run_.csd.durability == config::Durability::step) {
        world_->barrier();
        queue_.locked([&] { progress_.durable_step = step; });
    }
}

// Ends a step of which all ranks know that it does not take place.
void OptimizerSession::end_void_step(bool is_given_up) {
    is_void_ = false;
    program_.clear();
    queue_.publish([&] {
        progress_.steps -= is_given_up ? 0 : 1;
        ++progress_.norms_known;
        progress_.blocks_here = layout_.blocks.size();
    });
}

void OptimizerSession::use_places(const GpuPlaces& places) {
    std::vector<csd::GpuTensor> tensors;
    for (const auto& [tensor, memory] : places.tensors) {
        const engine::Tensor& of = layout_.tensors.at(tensor);
        tensors.push_back({of.offset, of.offset + elems_of(of), memory});
    }
    if (tensors_) {
        tensors_->use(tensors, places.unused, places.are_written);
    }
}

std::vector<std::pair<std::size_t, std::size_t>> OptimizerSession::elements_on_host(
    std::size_t tensor) const {
    const engine::Tensor& of = layout_.tensors.at(tensor);
    const std::size_t elems = elems_of(of);
    std::vector<std::pair<std::size_t, std::size_t>> ranges;
    for (std::size_t begin = 0; begin < elems;) {
        const std::size_t tile = (of.offset + begin) / shard::kTileElems;
        const std::size_t end = std::min(elems, (tile + 1) * shard::kTileElems - of.offset);
        if (!tensors_ || !tensors_->have(tile)) {
            if (ranges.empty() || ranges.back().second != begin) {
                ranges.emplace_back(begin, begin);
            }
            ranges.back().second = end;
        }
        begin = end;
    }
    return ranges;
}

void OptimizerSession::run(const EndStepCall& call) {
    if (is_void_) {
        end_void_step(call.is_given_up);
        return;
    }
    const Presence presence = presence_on_all(call.absent, call.is_given_up, 0);
    const bool is_void = presence.is_given_up;
    engine().end_pass();
    StepStats stats;
    stats.gradients = engine().end_gradients({.skipped = presence.skipped, .is_given_up = is_void});
    skipped_ += stats.gradients.is_finite || is_void ? 0 : 1;
    stats.skipped = skipped_;
    guesses_ += stats.gradients.guess != trace::Guess::none ? 1 : 0;
    misses_ += stats.gradients.guess == trace::Guess::wrong ? 1 : 0;
    stats.guesses = guesses_;
    stats.misses = misses_;
    stats.gradients_s = begun_.lap();
    use_places(call.places);
    if (engine().commits_early() && !is_void) {
        keep_program(engine().steps_done() + 1);
    }
    engine().update();
    stats.step = engine().steps_done();
    stats.is_of_step = true;
    stats.loss_scale = engine().loss_scale();
    queue_.publish([&] {
        ++progress_.norms_known;
        progress_.steps -= is_void && !call.is_given_up ? 1 : 0;
        progress_.loss_scale = stats.loss_scale;
    });
    pass_blocks();
    const double committed = engine().commit_seconds();
    stats.update = engine().finish();
    if (is_void) {
        program_.clear();
        return;
    }
    make_durable(stats.step);
    stats.commit_s = engine().commit_seconds() - committed;
    queue_.locked([&] { progress_.stats = stats; });
}

void OptimizerSession::change_masters(
    const std::vector<std::pair<std::size_t, TensorMemory>>& values, bool is_last) {
    const std::chrono::seconds limit =
        is_last ? std::chrono::seconds(MpiThread::kEndLimit)
                : kPatience * std::chrono::seconds(run_.exchange.timeout_s);
    const CollectiveCall call = is_last ? CollectiveCall::close : CollectiveCall::change;
    if (!match_calls(call, !values.empty(), limit)) {
        return;
    }
    std::vector<StartValues> starts(layout_.tensors.size());
    std::string names;
    for (const auto& [tensor, piece] : values) {
        starts.at(tensor).piece = piece;
        names += text(tensor, ' ', to_hex(xxh3(bytes_of(tensor, piece))), '\n');
    }
    if (!alike_->agree(names == alike_->broadcast(names, 0))) {
        throw ConfigError(
            "The program changed parameters between two steps, and not to the same values on all "
            "ranks: change them alike on every rank.");
    }
    on_all(ChangeMastersCall{.formats = formats_of(starts), .values = starts});
}

void OptimizerSession::run(const ChangeMastersCall& call) {
    std::vector<StartValues> served;
    std::span<const StartValues> values = call.values;
    if (serves()) {
        served = take_from_rank_0(call.formats);
        values = served;
    } else {
        pass_to_servers(values);
    }
    engine().change_masters(
        [&](std::size_t first, std::span<float> masters) { change(values, first, masters); });
    served_ = {};  // what came from rank 0 is in the state
}

// A value that the master rounds to was not changed.
void OptimizerSession::change(std::span<const StartValues> values, std::size_t first,
                              std::span<float> masters) const {
    std::vector<float> wanted(masters.begin(), masters.end());
    fill(values, first, wanted);
    std::vector<std::byte> rounded;
    for (std::size_t i = 0; i < values.size(); ++i) {
        const auto [begin, end] = overlap(i, first, masters.size());
        if (values[i].piece.address == nullptr || begin >= end) {
            continue;
        }
        const Dtype dtype = values[i].piece.dtype;
        const std::span<float> mine = masters.subspan(begin - first, end - begin);
        rounded.resize(mine.size() * size_bytes(dtype));
        std::vector<float> as_seen(mine.size());
        convert_from_fp32(mine.data(), dtype, rounded.data(), mine.size());
        convert_to_fp32(dtype, rounded.data(), as_seen.data(), mine.size());
        for (std::size_t k = 0; k < mine.size(); ++k) {
            const float value = wanted[begin - first + k];
            mine[k] = as_seen[k] == value ? mine[k] : value;
        }
    }
}

// Fetches the parameters of the current step, so that modules need not ask for them.
void OptimizerSession::pass_blocks() {
    engine().begin_forward();
    for (std::size_t block = 0; block < layout_.blocks.size(); ++block) {
        engine().await_parameters(block, {&layout_.blocks[block], 1}, {});
        queue_.publish([&] { progress_.blocks_here = block + 1; });
    }
    engine().end_pass();
}

}  // namespace nearstep::python
