// Gives an optimizer's work to the thread that calls MPI, and waits for it. Called by module.cpp
// for python/nearstep/_session.py and what it drives.
#include "python/binding/conductor.hpp"

#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "python/binding/mpi_thread.hpp"

#include <exception>
#include <utility>

namespace nearstep::python {

Conductor::Conductor(OptimizerPlan plan) : session_(std::move(plan), queue_) {}

Conductor::~Conductor() { end(false); }

void Conductor::close(bool keeps_vector) {
    if (const std::exception_ptr unread = end(keeps_vector)) {
        std::rethrow_exception(unread);
    }
}

std::exception_ptr Conductor::end(bool keeps_vector) {
    std::exception_ptr unread;
    if (MpiThread::instance().is_of_parent()) {
        session_.leave_to_parent();
        queue_.leave_to_parent();
    } else {
        queue_.close([&] { unread = session_.close(keeps_vector, queue_.has_failed()); });
    }
    return unread;
}

// --- Begin ---

bool Conductor::open(const engine::StartRequest& request) {
    queue_.do_and_wait([&] { session_.open_with_others(request); });
    return session_.engine().begins_anew();
}

void Conductor::keep_to(std::int64_t step) {
    queue_.do_and_wait([&] { session_.engine().keep_to(step); });
}

void Conductor::carry(const store::Commit& position, std::vector<CarriedTensor> tensors,
                      std::string_view program) {
    session_.carry(position, std::move(tensors), program);
}

std::vector<std::string> Conductor::begin(std::vector<StartValues> values) {
    std::vector<std::string> lines;
    queue_.do_and_wait([&] {
        session_.match_calls(CollectiveCall::begin);
        lines = session_.on_all(PrepareCall{.formats = formats_of(values), .values = values});
    });
    start_work_ = queue_.post([this, values = std::move(values)] { session_.fill_state(values); });
    return lines;
}

// --- A step ---

void Conductor::begin_step(const engine::StepSettings& step, const std::vector<std::size_t>& absent,
                           bool is_given_up) {
    queue_.post([this, step, absent, is_given_up] {
        session_.match_calls(CollectiveCall::step);
        session_.on_all(BeginStepCall{step, absent, is_given_up});
    });
}

void Conductor::expect_step() {
    queue_.post([this] { session_.on_all(ExpectCall()); });
}

std::uint64_t Conductor::put(std::size_t block, std::vector<TensorMemory> pieces, float factor,
                             CUevent_st* made) {
    return queue_.post([this, block, pieces = std::move(pieces), factor, made] {
        if (!session_.is_void()) {
            session_.on_all(PutCall{block, pieces, factor, made});
        }
    });
}

std::uint64_t Conductor::keep(std::string about, std::vector<std::span<const std::byte>> pieces,
                              CUevent_st* made) {
    return queue_.post([this, about = std::move(about), pieces = std::move(pieces), made] {
        session_.keep(about, pieces, made);
    });
}

void Conductor::end_step(const std::vector<std::size_t>& absent, bool is_given_up,
                         const GpuPlaces& places) {
    // Set before posting, because the work may be finished when post() returns.
    queue_.locked([&] {
        Progress& progress = session_.progress();
        progress.waited_s = 0;
        ++progress.norms_asked;
        progress.steps += is_given_up ? 0 : 1;
        progress.blocks_here = 0;
    });
    queue_.post([this, absent, is_given_up, places] {
        session_.on_all(EndStepCall{absent, is_given_up, places});
    });
}

std::uint64_t Conductor::change_masters(std::vector<std::pair<std::size_t, TensorMemory>> values,
                                        bool is_last) {
    return queue_.post(
        [this, values = std::move(values), is_last] { session_.change_masters(values, is_last); });
}

// --- Waiting ---

void Conductor::await_block(std::size_t block, const Poll& poll) {
    Stopwatch watch;
    queue_.wait(poll, [&] { return session_.progress().has_block(block); });
    queue_.locked([&] { session_.progress().waited_s += watch.lap(); });
}

bool Conductor::has_block(std::size_t block) const {
    return queue_.locked([&] { return session_.progress().has_block(block); });
}

void Conductor::finish(const Poll& poll) { queue_.await_all(poll); }

void Conductor::await_work(std::uint64_t work, const Poll& poll) { queue_.await(work, poll); }

double Conductor::loss_scale(const Poll& poll) {
    const Progress& progress = session_.progress();
    queue_.wait(poll, [&] { return progress.norms_known == progress.norms_asked; });
    return queue_.locked([&] { return progress.loss_scale; });
}

StepStats Conductor::stats() const {
    return queue_.locked([&] {
        StepStats stats = session_.progress().stats;
        stats.waited_s = session_.progress().waited_s;
        return stats;
    });
}

// --- Saving, and what a program asks ---

std::string Conductor::do_in_folder(const std::function<std::string()>& work) {
    std::string path;
    std::exception_ptr refused;
    queue_.do_and_wait([&] {
        session_.match_calls(CollectiveCall::save);
        try {
            path = work();
            // ConfigError and IoError come on all ranks alike, and nothing has changed: training
            // may go on.
        } catch (const ConfigError&) {
            refused = std::current_exception();
        } catch (const IoError&) {
            refused = std::current_exception();
        }
    });
    if (refused) {
        std::rethrow_exception(refused);
    }
    return path;
}

std::string Conductor::claim_checkpoint_folder(const std::string& folder) {
    return do_in_folder([&] { return session_.on_all(ClaimFolderCall{folder}); });
}

std::string Conductor::save(const std::string& folder, const std::string& program) {
    return do_in_folder([&] { return session_.on_all(SaveCall{folder, program}); });
}

std::uint64_t Conductor::masters_digest() {
    std::uint64_t digest = 0;
    queue_.do_and_wait([&] {
        session_.match_calls(CollectiveCall::digest);
        digest = session_.on_all(DigestCall());
    });
    return digest;
}

std::array<std::vector<float>, 3> Conductor::read_state(std::size_t tensor) {
    expects(session_.is_alone(), "one rank has the whole state");
    std::array<std::vector<float>, 3> found;
    queue_.do_and_wait([&] { found = session_.read_state(tensor); });
    return found;
}

store::Commit Conductor::position() {
    store::Commit position;
    queue_.do_and_wait([&] { position = session_.engine().position(); });
    return position;
}

std::vector<std::int64_t> Conductor::updates() {
    std::vector<std::int64_t> updates;
    queue_.do_and_wait([&] { updates = session_.engine().updates(); });
    return updates;
}

}  // namespace nearstep::python
