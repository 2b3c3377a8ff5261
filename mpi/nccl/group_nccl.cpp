// nccl/group.hpp with NCCL: collectives between GPUs. Used by the engine's GpuTransport.
#include "base/error.hpp"
#include "base/machine.hpp"
#include "base/wording.hpp"
#include "mpi/lost_hosts.hpp"
#include "mpi/nccl/group.hpp"
#include "mpi/nccl/nccl_library.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace nearstep::nccl {

namespace {

// More operations than are ever pending: a step waits for its few gradient operations block by
// block and has one parameter operation per block.
constexpr std::size_t kOperations = 128;

// Groups per GPU, with one to spare.
constexpr int kMostGroups = 4;

// NCCL queues an operation in some ten microseconds, so a wait begins without sleep: see pause().
constexpr std::chrono::microseconds kShortWait{200};
constexpr std::chrono::microseconds kPoll{50};

// Longest NCCL call in nonblocking mode.
constexpr std::chrono::milliseconds kLongestCall{500};

constexpr const char* kClosed = "An exchange between GPUs was given up.";

// Between two checks of a wait since `begin`.
void pause(Clock::time_point begin) {
    if (Clock::now() - begin < kShortWait) {
        std::this_thread::yield();
    } else {
        std::this_thread::sleep_for(kPoll);
    }
}

bool is_accepted(ncclResult_t code) { return code == ncclSuccess || code == ncclInProgress; }

ncclDataType_t type_of(Dtype dtype) {
    expects(dtype != Dtype::fp16, "sums of NCCL are of fp32 or bf16");
    return dtype == Dtype::fp32 ? ncclFloat32 : ncclBfloat16;
}

}  // namespace

std::string library_version() {
    const NcclLibrary* const nccl = find_library();
    if (nccl == nullptr) {
        return "";
    }
    int version = 0;
    if (nccl->get_version(&version) != ncclSuccess) {
        return "of unknown version";
    }
    return text(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

std::optional<std::string> find_obstacle(const mpi::Communicator& ranks, std::optional<int> gpu) {
    constexpr double kNone = -1;
    const double address = gpu ? static_cast<double>(memory::address_of_gpu(*gpu)) : kNone;
    const std::vector<double> addresses = ranks.all_gather({&address, 1});
    const std::vector<int> nodes = ranks.first_ranks_of_nodes();
    for (std::size_t rank = 0; rank < addresses.size(); ++rank) {
        if (addresses[rank] == kNone) {
            return text("rank ", rank, " of ", addresses.size(), " has no GPU");
        }
        for (std::size_t other = 0; other < rank; ++other) {
            if (nodes[other] == nodes[rank] && addresses[other] == addresses[rank]) {
                return text("ranks ", other, " and ", rank, " of ", addresses.size(),
                            " share a GPU");
            }
        }
    }
    if (!ranks.agree(find_library() != nullptr)) {
        return "a rank has no libnccl.so.2";
    }
    return std::nullopt;
}

// Shared by the thread that calls operations, the watchdog and an aborting thread.
struct Group::State {
    // An operation between two events in a stream. Slots are used in turn.
    struct Operation {
        const char* what = nullptr;  // null: the slot is free
        memory::Event begun;
        memory::Event ended;
        RunTime time;
    };

    State(int gpu_number, std::chrono::seconds time_limit) : gpu(gpu_number), limit(time_limit) {}

    std::string failure(const char* what, ncclResult_t code) const {
        const char* detail = comm != nullptr ? library().last_error(comm) : "";
        std::string words = detail != nullptr ? detail : "";
        std::replace(words.begin(), words.end(), '\n', ' ');
        return text("NCCL reports \"", library().error_text(code), "\" in ", what,
                    words.empty() ? "" : " (", words, words.empty() ? "" : ")",
                    ": look for the rank that stopped", then_start_again(), ".");
    }

    std::string overdue(const char* what) const {
        return text("Another rank did not take part in ", what, " between GPUs for ", limit.count(),
                    " s (seen on host ", own_host(), link.empty() ? "" : ", interface ", link,
                    mpi::describe_silent_hosts(),
                    "): look for the rank that stopped or the link that is down, or raise "
                    "exchange.timeout_s.");
    }

    // The state of the communicator. Hold `mutex`.
    ncclResult_t ask() const {
        ncclResult_t now = ncclSuccess;
        const ncclResult_t code = library().ask(comm, &now);
        return code == ncclSuccess ? now : code;
    }

    std::optional<std::string> look(Clock::time_point now);
    void abort();
    void await_queued(Watchdog& watchdog, const char* what);
    Operation& free_operation(Watchdog& watchdog);
    // Frees the slot of an operation that has ended. Hold `mutex`.
    void free(Operation& operation);

    int gpu;
    std::chrono::seconds limit;
    // NCCL's interface between hosts, if the user or a launcher names one, as in "=eth0".
    std::string link =
        std::getenv("NCCL_SOCKET_IFNAME") != nullptr ? std::getenv("NCCL_SOCKET_IFNAME") : "";
    std::mutex mutex;  // guards the non-atomic members below
    ncclComm_t comm = nullptr;
    std::atomic<bool> is_closed = false;  // set before aborting: no more calls
    // While a thread is in an NCCL call and holds the mutex: the operation and when it started.
    std::atomic<const char*> calling = nullptr;
    std::atomic<Clock::rep> called_at = 0;
    // How long that call has taken. The watchdog's thread alone uses these.
    Clock::rep seen_call = 0;
    RunTime call_time;
    std::array<Operation, kOperations> operations;
    std::size_t next = 0;
    double seconds = 0;  // of operations that have ended
};

void Group::State::free(Operation& operation) {
    if (operation.what != nullptr) {
        seconds += operation.ended.seconds_since(operation.begun);
    }
    operation.what = nullptr;
}

std::optional<std::string> Group::State::look(Clock::time_point now) {
    const std::unique_lock lock(mutex, std::try_to_lock);
    if (!lock) {
        const char* what = calling.load();
        if (const Clock::rep call = called_at.load(); call != seen_call) {
            seen_call = call;
            call_time = RunTime();
        }
        const Progress progress = what == nullptr ? Progress::over : Progress::running;
        return call_time.is_overdue(progress, now, limit) ? std::optional(overdue(what))
                                                          : std::nullopt;
    }
    if (is_closed || comm == nullptr) {
        return std::nullopt;
    }
    // Sets the GPU of this thread: otherwise querying events could initialise another GPU.
    memory::use_gpu(gpu);
    if (const ncclResult_t code = ask(); !is_accepted(code)) {
        return failure("the background", code);
    }
    for (Operation& operation : operations) {
        if (operation.what == nullptr) {
            continue;
        }
        const Progress progress = operation.ended.is_over()   ? Progress::over
                                  : operation.begun.is_over() ? Progress::running
                                                              : Progress::queued;
        if (operation.time.is_overdue(progress, now, limit)) {
            return overdue(operation.what);
        }
        if (progress == Progress::over) {
            free(operation);
        }
    }
    return std::nullopt;
}

// The calling thread may be stuck in NCCL and hold the mutex. Only the abort frees it, so wait for
// the mutex no longer than a normal call takes.
void Group::State::abort() {
    if (is_closed.exchange(true)) {
        return;
    }
    std::unique_lock lock(mutex, std::defer_lock);
    const Clock::time_point deadline = Clock::now() + kLongestCall;
    while (!lock.try_lock() && Clock::now() < deadline) {
        std::this_thread::sleep_for(kPoll);
    }
    if (comm != nullptr) {
        static_cast<void>(library().abort(comm));
    }
}

// Waits until NCCL has queued the operation on the host; the GPU may still run it.
void Group::State::await_queued(Watchdog& watchdog, const char* what) {
    const Clock::time_point begin = Clock::now();
    AwakeTime time;
    for (;;) {
        ncclResult_t code = ncclInProgress;
        {
            const std::lock_guard lock(mutex);
            if (is_closed) {
                break;
            }
            code = ask();
        }
        if (code == ncclSuccess) {
            return;
        }
        if (code != ncclInProgress) {
            watchdog.give_up(failure(what, code));
        }
        if (time.look() > limit) {
            watchdog.give_up(overdue(what));
        }
        pause(begin);
    }
    watchdog.give_up(kClosed);
}

Group::State::Operation& Group::State::free_operation(Watchdog& watchdog) {
    for (;;) {
        {
            const std::lock_guard lock(mutex);
            if (is_closed) {
                break;
            }
            Operation& operation = operations[next];
            if (operation.what == nullptr || operation.ended.is_over()) {
                next = (next + 1) % operations.size();
                free(operation);
                operation.time = {};
                return operation;
            }
        }
        std::this_thread::sleep_for(kPoll);
    }
    watchdog.give_up(kClosed);
}

namespace {

// Tells the watchdog which operation the calling thread is in NCCL for.
class Call {
public:
    template <typename State>
    Call(State& state, const char* what) : calling_(state.calling) {
        state.called_at = Clock::now().time_since_epoch().count();
        calling_ = what;
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    ~Call() { calling_ = nullptr; }

private:
    std::atomic<const char*>& calling_;
};

// Queues the NCCL operation of `call` between two events that the watchdog checks.
template <typename State, typename Function>
void queue(State& state, Watchdog& watchdog, const char* what, const memory::Stream& stream,
           const Function& call) {
    auto& operation = state.free_operation(watchdog);
    ncclResult_t code = ncclSuccess;
    {
        const std::lock_guard lock(state.mutex);
        const Call in_nccl(state, what);
        operation.begun.record(stream);
        code = call(state.comm, stream.handle());
    }
    if (!is_accepted(code)) {
        watchdog.give_up(state.failure(what, code));
    }
    // Without this the operation may not be in the stream yet.
    state.await_queued(watchdog, what);
    const std::lock_guard lock(state.mutex);
    operation.ended.record(stream);
    operation.what = what;
}

}  // namespace

Group::Group(const mpi::Communicator& ranks, int gpu, Watchdog& watchdog,
             std::chrono::seconds limit)
    : rank_(ranks.rank()), size_(ranks.size()), gpu_(gpu), watchdog_(watchdog) {
    constexpr const char* kWhat = "NCCL's start";
    memory::use_gpu(gpu);
    state_ = std::make_shared<State>(gpu, limit);
    ncclUniqueId id{};
    std::string bytes(sizeof id, '\0');
    if (rank_ == 0) {
        if (const ncclResult_t code = library().make_id(&id); code != ncclSuccess) {
            watchdog_.give_up(state_->failure(kWhat, code));
        }
        std::memcpy(bytes.data(), &id, sizeof id);
    }
    bytes = ranks.broadcast(bytes, 0);
    std::memcpy(&id, bytes.data(), sizeof id);
    watch_ = watchdog_.watch(
        {.look = [state = state_](Clock::time_point now) { return state->look(now); },
         .abort = [state = state_] { state->abort(); }});
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = std::max(memory::multiprocessors_of_gpu(gpu) / kMostGroups, 1);
    ncclResult_t code = ncclSuccess;
    {
        const std::lock_guard lock(state_->mutex);
        const Call in_nccl(*state_, kWhat);
        code = library().start(&state_->comm, size_, id, rank_, &config);
    }
    if (!is_accepted(code)) {
        watchdog_.give_up(state_->failure(kWhat, code));
    }
    state_->await_queued(watchdog_, kWhat);
}

Group::~Group() {
    watchdog_.forget(watch_);
    const std::lock_guard lock(state_->mutex);
    if (state_->comm == nullptr || state_->is_closed.exchange(true)) {
        return;
    }
    ncclResult_t code = library().finalize(state_->comm);
    const Clock::time_point deadline = Clock::now() + state_->limit;
    while (code == ncclInProgress && Clock::now() < deadline) {
        std::this_thread::sleep_for(kPoll);
        code = state_->ask();
    }
    static_cast<void>(code == ncclSuccess ? library().destroy(state_->comm)
                                          : library().abort(state_->comm));
}

void Group::reduce_scatter(std::span<const std::byte> parts, std::span<std::byte> mine, Dtype dtype,
                           const memory::Stream& stream) {
    expects(parts.size() == mine.size() * static_cast<std::size_t>(size_),
            "every rank has a part of each");
    expects(mine.size() % size_bytes(dtype) == 0, "parts are whole elements");
    const std::size_t count = mine.size() / size_bytes(dtype);
    queue(*state_, watchdog_, "a reduce-scatter", stream, [&](ncclComm_t comm, CUstream_st* on) {
        return library().reduce_scatter(parts.data(), mine.data(), count, type_of(dtype), ncclSum,
                                        comm, on);
    });
}

void Group::all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                       const memory::Stream& stream) {
    expects(all.size() == mine.size() * static_cast<std::size_t>(size_),
            "there is room for every rank's");
    queue(*state_, watchdog_, "an all-gather", stream, [&](ncclComm_t comm, CUstream_st* on) {
        return library().all_gather(mine.data(), all.data(), mine.size(), ncclUint8, comm, on);
    });
}

void Group::exchange(std::span<const std::span<const std::byte>> to,
                     std::span<const std::span<std::byte>> from, const memory::Stream& stream) {
    const auto ranks = static_cast<std::size_t>(size_);
    const auto me = static_cast<std::size_t>(rank_);
    expects(to.size() == ranks && from.size() == ranks, "every rank has its messages");
    expects(to[me].empty() && from[me].empty(), "a rank sends nothing to itself");
    queue(*state_, watchdog_, "a send and receive", stream, [&](ncclComm_t comm, CUstream_st* on) {
        ncclResult_t code = library().begin_group();
        // All in one NCCL group: separate calls could deadlock. Each rank starts with another peer.
        for (std::size_t step = 1; step < ranks; ++step) {
            const std::size_t next = (me + step) % ranks;
            const std::size_t previous = (me + ranks - step) % ranks;
            if (is_accepted(code) && !to[next].empty()) {
                code = library().send(to[next].data(), to[next].size(), ncclUint8,
                                      static_cast<int>(next), comm, on);
            }
            if (is_accepted(code) && !from[previous].empty()) {
                code = library().receive(from[previous].data(), from[previous].size(), ncclUint8,
                                         static_cast<int>(previous), comm, on);
            }
        }
        const ncclResult_t end = library().end_group();
        return is_accepted(code) ? end : code;
    });
}

// Aborted operations end, too, but leave undefined data.
void Group::wait_for(const memory::Event& event) {
    event.wait();
    if (state_->is_closed) {
        watchdog_.give_up(kClosed);
    }
}

double Group::take_seconds() {
    const std::lock_guard lock(state_->mutex);
    for (State::Operation& operation : state_->operations) {
        if (operation.what != nullptr && operation.ended.is_over()) {
            state_->free(operation);
        }
    }
    return std::exchange(state_->seconds, 0);
}

}  // namespace nearstep::nccl
