// A step of the conductor: gradients to the engine, parameters back, and what the program changes
// between two steps. Called by python/nearstep/_gradients/intake.py and _model/parameters.py.
#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/packed.hpp"
#include "memory/gpu.hpp"
#include "python/binding/conductor.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace nearstep::python {

// One rank alone may evaluate before, for long.
void Conductor::meet(Purpose purpose) {
    meet(purpose, false, kPatience * std::chrono::seconds(run_.exchange.timeout_s));
}

bool Conductor::meet(Purpose purpose, bool raises, std::chrono::seconds limit) {
    return acts_alone() ? raises : MpiThread::instance().meet(purpose, raises, limit);
}

void Conductor::begin_step(const engine::StepSettings& step, const std::vector<std::size_t>& absent,
                           bool is_given_up) {
    post([this, step, absent, is_given_up] {
        meet(Purpose::step);
        begin_on_all(step, absent, is_given_up);
    });
}

void Conductor::begin_on_all(const engine::StepSettings& step,
                             const std::vector<std::size_t>& absent, bool is_given_up) {
    tell(Deed::begin_step, 0, packed(step.clip_norm, step.groups));
    begun_.lap();
    const Presence presence = presence_on_all(absent, is_given_up, digest_of(step));
    is_void_ = presence.is_given_up;
    if (!is_void_ && !presence.is_alike) {
        refuse_unequal(step);
    }
    if (!is_void_) {
        engine::StepSettings of_all = step;
        of_all.skipped = presence.skipped;
        engine().begin_backward(of_all);
    }
}

void Conductor::expect_on_all() {
    tell(Deed::expect);
    engine().expect_backward();
}

std::uint64_t Conductor::put(std::size_t block, std::vector<TensorMemory> pieces, float factor,
                             CUevent_st* made) {
    return post([this, block, pieces = std::move(pieces), factor, made] {
        put_on_all(block, pieces, factor, made);
    });
}

// A rank that serves has no gradients.
void Conductor::put_on_all(std::size_t block, std::span<const TensorMemory> pieces, float factor,
                           CUevent_st* made) {
    if (is_void_) {
        return;
    }
    tell(Deed::put, block);
    if (!serves()) {
        write_gradients(block, pieces, factor, made);
    }
    engine().put_gradient(block);
}

void Conductor::write_gradients(std::size_t block, std::span<const TensorMemory> pieces,
                                float factor, CUevent_st* made) {
    const bool is_on_gpu = facts_.encodes_on_gpu;
    const std::span<float> space = engine().gradient_space(block);
    if (is_on_gpu) {
        gradient_stream_.wait_for(made);
    }
    std::size_t at = 0;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        const std::size_t elems = elems_of(layout_.tensors[first_tensors_[block] + i]);
        const std::span<float> to = space.subspan(at, elems);
        at += elems;
        if (is_on_gpu && pieces[i].address == nullptr) {
            memory::fill_with_zeros(std::as_writable_bytes(to), gradient_stream_);
        } else if (is_on_gpu) {
            memory::convert_on_gpu(to, pieces[i].address, pieces[i].dtype, factor,
                                   gradient_stream_);
        } else if (pieces[i].address == nullptr) {
            std::ranges::fill(to, 0.0F);
        } else {
            convert_to_fp32(pieces[i].dtype, pieces[i].address, to.data(), elems);
            if (factor != 1) {
                std::ranges::transform(to, to.begin(), [factor](float g) { return factor * g; });
            }
        }
    }
}

std::uint64_t Conductor::keep(std::string about, std::vector<std::span<const std::byte>> pieces,
                              CUevent_st* made) {
    return post([this, about = std::move(about), pieces = std::move(pieces), made] {
        if (made != nullptr) {
            gradient_stream_.wait_for(made);
            gradient_stream_.wait();
        }
        program_ = about;
        for (const std::span<const std::byte> piece : pieces) {
            program_.append(reinterpret_cast<const char*>(piece.data()), piece.size());  // NOLINT
        }
    });
}

// The step counts as durable when all ranks name it, which a rank learns by waiting for them. They
// wait for each other at the next step's begin, too.
void Conductor::make_durable(std::int64_t step) {
    engine().keep_program(std::as_bytes(std::span(program_)));
    program_.clear();
    engine().commit();
    if (run_.csd.durability == config::Durability::step) {
        world_->barrier();
        const std::lock_guard lock(mutex_);
        durable_step_ = step;
    }
}

// Ends a step of which all ranks know that it does not take place.
void Conductor::end_void_step(bool is_given_up) {
    is_void_ = false;
    program_.clear();
    const std::lock_guard lock(mutex_);
    steps_ -= is_given_up ? 0 : 1;
    ++norms_known_;
    blocks_here_ = layout_.blocks.size();
    changed_.notify_all();
}

void Conductor::end_step(const std::vector<std::size_t>& absent, bool is_given_up,
                         const GpuPlaces& places) {
    {
        // Set before posting, because the work may be finished when post() returns.
        const std::lock_guard lock(mutex_);
        waited_s_ = 0;
        ++norms_asked_;
        steps_ += is_given_up ? 0 : 1;
        blocks_here_ = 0;
    }
    post([this, absent, is_given_up, places] { end_on_all(absent, is_given_up, places); });
}

void Conductor::use_places(const GpuPlaces& places) {
    std::vector<csd::GpuTensor> tensors;
    for (const auto& [tensor, memory] : places.tensors) {
        const engine::Tensor& of = layout_.tensors.at(tensor);
        tensors.push_back({of.offset, of.offset + elems_of(of), memory});
    }
    if (tensors_) {
        tensors_->use(tensors, places.unused, places.are_written);
    }
}

std::vector<std::pair<std::size_t, std::size_t>> Conductor::elements_on_host(
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

void Conductor::end_on_all(const std::vector<std::size_t>& absent, bool is_given_up,
                           const GpuPlaces& places) {
    tell(Deed::end_step);
    if (is_void_) {
        end_void_step(is_given_up);
        return;
    }
    const Presence presence = presence_on_all(absent, is_given_up, 0);
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
    use_places(places);
    engine().update();
    stats.step = engine().steps_done();
    stats.is_of_step = true;
    stats.loss_scale = engine().loss_scale();
    {
        const std::lock_guard lock(mutex_);
        ++norms_known_;
        steps_ -= is_void && !is_given_up ? 1 : 0;
        loss_scale_ = stats.loss_scale;
        changed_.notify_all();
    }
    pass_blocks();
    const double committed = engine().commit_seconds();
    stats.update = engine().finish();
    if (is_void) {
        program_.clear();
        return;
    }
    make_durable(stats.step);
    stats.commit_s = engine().commit_seconds() - committed;
    const std::lock_guard lock(mutex_);
    stats_ = stats;
}

std::uint64_t Conductor::change_masters(std::vector<std::pair<std::size_t, TensorMemory>> values,
                                        bool is_last) {
    return post([this, values = std::move(values), is_last] { change_on_all(values, is_last); });
}

void Conductor::change_on_all(const std::vector<std::pair<std::size_t, TensorMemory>>& values,
                              bool is_last) {
    const std::chrono::seconds limit =
        is_last ? std::chrono::seconds(MpiThread::kEndLimit)
                : kPatience * std::chrono::seconds(run_.exchange.timeout_s);
    const Purpose purpose = is_last ? Purpose::close : Purpose::change;
    if (!meet(purpose, !values.empty(), limit)) {
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
    tell(Deed::change, 0, formats_of(starts));
    pass_to_servers(starts);
    change_masters_to(starts);
}

void Conductor::change_masters_to(std::span<const StartValues> values) {
    engine().change_masters(
        [&](std::size_t first, std::span<float> masters) { change(values, first, masters); });
}

// A value that the master rounds to was not changed.
void Conductor::change(std::span<const StartValues> values, std::size_t first,
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
void Conductor::pass_blocks() {
    engine().begin_forward();
    for (std::size_t block = 0; block < layout_.blocks.size(); ++block) {
        engine().await_parameters(block, {&layout_.blocks[block], 1}, {});
        const std::lock_guard lock(mutex_);
        blocks_here_ = block + 1;
        changed_.notify_all();
    }
    engine().end_pass();
}

void Conductor::await_block(std::size_t block, const Poll& poll) {
    Stopwatch watch;
    wait(poll, [&] { return blocks_here_ > block && norms_known_ == norms_asked_; });
    const std::lock_guard lock(mutex_);
    waited_s_ += watch.lap();
}

bool Conductor::has_block(std::size_t block) const {
    const std::lock_guard lock(mutex_);
    return blocks_here_ > block && norms_known_ == norms_asked_;
}

void Conductor::finish(const Poll& poll) {
    wait(poll, [&] { return done_ == posted_; });
}

void Conductor::await_work(std::uint64_t work, const Poll& poll) {
    wait(poll, [&] { return done_ >= work; });
}

double Conductor::loss_scale(const Poll& poll) {
    wait(poll, [&] { return norms_known_ == norms_asked_; });
    const std::lock_guard lock(mutex_);
    return loss_scale_;
}

StepStats Conductor::stats() const {
    const std::lock_guard lock(mutex_);
    StepStats stats = stats_;
    stats.waited_s = waited_s_;
    return stats;
}

}  // namespace nearstep::python
