// Runs a card's kernels by XRT. Used by csd.
#include "base/awake_time.hpp"
#include "base/wording.hpp"
#include "fpga/host/xrt_state.hpp"

#include <utility>

namespace nearstep::fpga {

namespace {

using std::chrono::milliseconds;

// XRT 2.13 may lose a wake-up if several cards are waited for, so wait() polls at this interval.
constexpr milliseconds kSlice{100};

const char* name_of(ert_cmd_state state) {
    switch (state) {
        case ERT_CMD_STATE_ERROR:
            return "error";
        case ERT_CMD_STATE_ABORT:
            return "aborted";
        case ERT_CMD_STATE_TIMEOUT:
            return "reset after a time-out of the card's";
        case ERT_CMD_STATE_NORESPONSE:
            return "no response";
        default:
            return "unknown";
    }
}

// The index of the argument, whose type must be that of its table.
int index_in(const KernelDescription& kernel, const char* argument, ArgumentKind kind) {
    const std::size_t index = index_of(kernel, argument);
    expects(index < kernel.count, text("the kernel ", kernel.name, " has an argument ", argument));
    const ArgumentKind found = kernel.arguments[index].kind;
    expects(found == kind || (is_memory(found) && is_memory(kind)),
            text("the argument ", argument, " of ", kernel.name, " has the type of its table"));
    return static_cast<int>(index);
}

}  // namespace

KernelRun::KernelRun(std::unique_ptr<State> state) : state_(std::move(state)) {}
KernelRun::KernelRun(KernelRun&&) noexcept = default;

KernelRun& KernelRun::operator=(KernelRun&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
}

KernelRun::~KernelRun() {
    // A run that may still execute keeps its buffers. Otherwise the card could write into memory
    // that was given to someone else.
    if (state_ && state_->is_in_flight) {
        static_cast<void>(state_.release());
    }
}

void KernelRun::set(const char* argument, const CardBuffer& buffer) {
    const int index = index_in(state_->kernel, argument, ArgumentKind::memory_in);
    const std::shared_ptr<CardBuffer::Memory>& memory = buffer.memory();
    call_xrt(state_->card, text("setting ", argument, " of ", state_->kernel.name), [&] {
        // XRT would copy a buffer of another bank to the right one, and the kernel would use the
        // copy.
        const auto wanted = state_->code.group_id(index);
        const auto found = memory->bo.get_memory_group();
        if (static_cast<int>(found) != wanted) {
            throw XrtError(text("Card ", state_->card, ": the buffer for ", argument, " of ",
                                state_->kernel.name, " lies in bank ", found,
                                ", its port is connected to bank ", wanted,
                                ": the .xclbin is not of this program; build it again."));
        }
        state_->run.set_arg(index, memory->bo);
    });
    state_->memory.at(static_cast<std::size_t>(index)) = memory;
}

void KernelRun::set(const char* argument, std::uint64_t value) {
    state_->run.set_arg(index_in(state_->kernel, argument, ArgumentKind::u64), value);
}

void KernelRun::set(const char* argument, std::uint32_t value) {
    state_->run.set_arg(index_in(state_->kernel, argument, ArgumentKind::u32), value);
}

void KernelRun::set(const char* argument, float value) {
    state_->run.set_arg(index_in(state_->kernel, argument, ArgumentKind::f32), value);
}

void KernelRun::start() {
    state_->health->check();
    call_xrt(state_->card, text("starting ", state_->kernel.name), [&] { state_->run.start(); });
    state_->is_in_flight = true;
}

void KernelRun::wait(const std::string& purpose) {
    const std::string what = text(state_->kernel.name, " (", purpose, ")");
    AwakeTime time;
    auto status = ERT_CMD_STATE_TIMEOUT;
    while (status == ERT_CMD_STATE_TIMEOUT && time.look() < state_->longest) {
        state_->health->check();
        status = call_xrt(state_->card, "waiting for " + what, [&] {
            // A time-out of the wait and one of the card have the same code; the run's state tells
            // them apart.
            const auto waited = state_->run.wait(kSlice);
            return waited == ERT_CMD_STATE_TIMEOUT && state_->run.state() == ERT_CMD_STATE_COMPLETED
                       ? ERT_CMD_STATE_COMPLETED
                       : waited;
        });
    }
    if (status == ERT_CMD_STATE_TIMEOUT) {
        state_->health->give_up(
            text("Card ", state_->card, ": ", what, " has not finished within ",
                 std::chrono::duration<double>(state_->longest).count(),
                 " s (time-out): look at the card with `xbutil examine`, reset it with `xbutil "
                 "reset`, then start again with ",
                 Term::resume, "; if its runs are just slow, raise exchange.timeout_s."));
        state_->health->check();
    }
    state_->is_in_flight = false;
    if (status != ERT_CMD_STATE_COMPLETED) {
        throw XrtError(text("Card ", state_->card, ": ", what, " ended in the state \"",
                            name_of(status),
                            "\": look at the card with `xbutil examine`, then "
                            "start again with ",
                            Term::resume, "."));
    }
}

}  // namespace nearstep::fpga
