// Collectives on host memory: MPI's, with a time limit, or copies of a rank that is alone. Used
// wherever ranks meet.
#include "mpi/communicator.hpp"

#include "base/error.hpp"
#include "base/packed.hpp"
#include "mpi/call.hpp"
#include "mpi/request_state.hpp"
#include "mpi/session.hpp"

#include <climits>

#include <array>
#include <numeric>
#include <utility>

namespace nearstep::mpi {

namespace {

int count_of(std::size_t bytes) {
    expects(bytes <= static_cast<std::size_t>(INT_MAX), "one MPI message stays below 2 GiB");
    return static_cast<int>(bytes);
}

// A rank in together() waits this many times the limit: 20 minutes by default.
constexpr int kPatience = 10;

// Counts and displacements of blocks for MPI, in elements of unit(). MPI counts in int, so blocks
// of more than 2 GiB together are counted in pages. Each block must then be whole pages.
class Counts {
public:
    explicit Counts(const Blocks& blocks) {
        constexpr std::size_t kPage = 4096;
        const bool is_large = blocks.total() > static_cast<std::size_t>(INT_MAX);
        if (is_large) {
            check(MPI_Type_contiguous(kPage, MPI_BYTE, &unit_));
            check(MPI_Type_commit(&unit_));
        }
        std::size_t at = 0;
        for (const std::size_t bytes : blocks.bytes) {
            expects(!is_large || bytes % kPage == 0, "large blocks are whole pages");
            counts.push_back(count_of(is_large ? bytes / kPage : bytes));
            starts.push_back(count_of(is_large ? at / kPage : at));
            at += bytes;
        }
    }
    Counts(const Counts&) = delete;
    Counts& operator=(const Counts&) = delete;
    ~Counts() {
        if (unit_ != MPI_BYTE) {
            MPI_Type_free(&unit_);
        }
    }

    MPI_Datatype unit() const { return unit_; }

    std::vector<int> counts;
    std::vector<int> starts;

private:
    MPI_Datatype unit_ = MPI_BYTE;
};

}  // namespace

Request::Request() = default;
Request::Request(std::unique_ptr<State> state) : state_(std::move(state)) {}
Request::Request(Request&&) noexcept = default;

// An error that leaves this function ends the program with its reason.
Request& Request::operator=(Request&& other) noexcept {  // NOLINT(bugprone-exception-escape)
    if (this != &other) {
        finish();
        state_ = std::move(other.state_);
    }
    return *this;
}

Request::~Request() { finish(); }  // NOLINT(bugprone-exception-escape): as above

// Nobody waits for a transfer that may never complete.
void Request::finish() {
    if (state_ && *state_->patience.has_ended) {
        state_.release();  // NOLINT(bugprone-unused-return-value): MPI may still use it
    }
    wait();
}

bool Request::test() {
    if (!state_) {
        return true;
    }
    int is_done = 0;
    check(MPI_Test(&state_->request, &is_done, MPI_STATUS_IGNORE));
    if (is_done != 0) {
        state_.reset();
    }
    return is_done != 0;
}

std::size_t Blocks::total() const {
    return std::accumulate(bytes.begin(), bytes.end(), std::size_t{0});
}

struct Communicator::RawGroup {
    explicit RawGroup(MPI_Comm raw) : comm(raw) {}
    RawGroup(const RawGroup&) = delete;
    RawGroup& operator=(const RawGroup&) = delete;
    ~RawGroup() {
        int is_finalized = 0;
        MPI_Finalized(&is_finalized);
        if (is_finalized == 0) {
            MPI_Comm_free(&comm);
        }
    }
    MPI_Comm comm;
    std::vector<int> first_ranks_of_nodes;  // empty: not asked for yet
};

Communicator::Communicator(std::unique_ptr<RawGroup> group, Patience patience)
    : group_(std::move(group)), patience_(std::move(patience)) {
    if (!has_mpi()) {
        return;
    }
    check(MPI_Comm_set_errhandler(group_->comm, MPI_ERRORS_RETURN));
    check(MPI_Comm_rank(group_->comm, &rank_));
    check(MPI_Comm_size(group_->comm, &size_));
}

Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;
Communicator::~Communicator() = default;

namespace {

Request pending(MPI_Request request, const Patience& patience) {
    return Request(std::make_unique<Request::State>(Request::State{request, patience}));
}

void wait_for_all(MPI_Comm comm, const Patience& patience) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ibarrier(comm, &request));
    pending(request, patience).wait();
}

template <typename Value>
void add_up(std::span<Value> values, MPI_Datatype type, MPI_Comm comm, const Patience& patience) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Iallreduce(MPI_IN_PLACE, values.data(), count_of(values.size()), type, MPI_SUM, comm,
                         &request));
    pending(request, patience).wait();
}

}  // namespace

Communicator Communicator::alone(std::chrono::seconds limit) {
    return {nullptr, Patience{.limit = limit}};
}

Communicator Communicator::world(std::chrono::seconds limit) {
    const Patience patience{.limit = limit};
    if (!is_running()) {
        return {nullptr, patience};
    }
    wait_for_all(MPI_COMM_WORLD, patience);
    MPI_Comm duplicate = MPI_COMM_NULL;
    check(MPI_Comm_dup(MPI_COMM_WORLD, &duplicate));
    return {std::make_unique<RawGroup>(duplicate), patience};
}

Communicator Communicator::split(int colour) const {
    if (!has_mpi()) {
        return {nullptr, patience_};
    }
    barrier();
    MPI_Comm part = MPI_COMM_NULL;
    check(MPI_Comm_split(group_->comm, colour, rank_, &part));
    return {std::make_unique<RawGroup>(part), patience_};
}

std::vector<int> Communicator::first_ranks_of_nodes() const {
    if (!has_mpi()) {
        return {0};
    }
    std::vector<int>& firsts = group_->first_ranks_of_nodes;
    if (!firsts.empty()) {
        return firsts;
    }
    barrier();
    MPI_Comm raw = MPI_COMM_NULL;
    check(MPI_Comm_split_type(group_->comm, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &raw));
    const Communicator node(std::make_unique<RawGroup>(raw), patience_);
    const double first = node.smallest(rank_, patience_);
    for (const double one : all_gather({&first, 1})) {
        firsts.push_back(static_cast<int>(one));
    }
    return firsts;
}

void Communicator::barrier() const {
    if (has_mpi()) {
        wait_for_all(group_->comm, patience_);
    }
}

// MPI_IN_PLACE is not used: with SimGrid as the MPI library the result would be no rank's value.
int Communicator::smallest(int value, const Patience& patience) const {
    if (!has_mpi()) {
        return value;
    }
    int least = value;
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Iallreduce(&value, &least, 1, MPI_INT, MPI_MIN, group_->comm, &request));
    pending(request, patience).wait();
    return least;
}

bool Communicator::agree(bool ok) const { return smallest(ok ? 1 : 0, patience_) != 0; }

void Communicator::together(const std::function<void()>& work) const {
    enum class ErrorKind { config, path, io };
    std::string problem;
    const auto note = [&](ErrorKind kind, const Error& error, int code = 0) {
        problem = packed(kind, code, std::string(error.what()));
    };
    try {
        work();
    } catch (const PathError& error) {
        note(ErrorKind::path, error, error.code());
    } catch (const ConfigError& error) {
        note(ErrorKind::config, error);
    } catch (const IoError& error) {
        note(ErrorKind::io, error);
    } catch (const Hdf5Error& error) {  // while a checkpoint is read or written
        note(ErrorKind::io, error);
    }
    Patience of_all = patience_;
    of_all.limit *= kPatience;
    const int first = smallest(problem.empty() ? size_ : rank_, of_all);
    if (first == size_) {
        return;
    }
    ErrorKind kind = ErrorKind::config;
    int code = 0;
    std::string sentence;
    unpack(broadcast(problem, first), kind, code, sentence);
    switch (kind) {
        case ErrorKind::io:
            throw IoError(sentence);
        case ErrorKind::path:
            throw PathError(sentence, code);
        case ErrorKind::config:
            throw ConfigError(sentence);
    }
}

void Communicator::on_rank_0(const std::function<void()>& work) const {
    together(rank_ == 0 ? work : [] {});
}

MatchedCalls Communicator::match_calls(int call, bool raises, std::chrono::seconds limit) const {
    Patience patience = patience_;
    patience.limit = limit;
    const std::array<std::int64_t, 3> mine{std::int64_t{call} * size_ + rank_, -call,
                                           raises ? 0 : 1};
    std::array<std::int64_t, 3> least = mine;
    if (has_mpi()) {
        MPI_Request request = MPI_REQUEST_NULL;
        check(MPI_Iallreduce(mine.data(), least.data(), count_of(least.size()), MPI_INT64_T,
                             MPI_MIN, group_->comm, &request));
        pending(request, patience).wait();
    }
    return {.lowest = static_cast<int>(least[0] / size_),
            .rank = static_cast<int>(least[0] % size_),
            .highest = static_cast<int>(-least[1]),
            .is_raised = least[2] == 0};
}

std::string Communicator::broadcast(const std::string& value, int root) const {
    std::uint64_t bytes = value.size();
    start_broadcast(std::as_writable_bytes(std::span(&bytes, 1)), root).wait();
    std::string copy = value;
    copy.resize(bytes);
    if (bytes > 0) {
        start_broadcast(std::as_writable_bytes(std::span(copy)), root).wait();
    }
    return copy;
}

void Communicator::sum(std::span<double> values) const {
    if (has_mpi()) {
        add_up(values, MPI_DOUBLE, group_->comm, patience_);
    }
}

void Communicator::sum(std::span<std::uint64_t> values) const {
    if (has_mpi()) {
        add_up(values, MPI_UINT64_T, group_->comm, patience_);
    }
}

std::vector<double> Communicator::all_gather(std::span<const double> mine) const {
    if (!has_mpi()) {
        return {mine.begin(), mine.end()};
    }
    std::vector<double> all(mine.size() * static_cast<std::size_t>(size_));
    const int count = count_of(mine.size());
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Iallgather(mine.data(), count, MPI_DOUBLE, all.data(), count, MPI_DOUBLE,
                         group_->comm, &request));
    pending(request, patience_).wait();
    return all;
}

void Communicator::all_to_all(std::span<const std::byte> send, const Blocks& send_blocks,
                              std::span<std::byte> receive, const Blocks& receive_blocks) const {
    expects(send.size() >= send_blocks.total(), "the blocks to send lie in the buffer");
    expects(receive.size() >= receive_blocks.total(), "the blocks to receive fit the buffer");
    if (!has_mpi()) {
        expects(send_blocks.bytes == receive_blocks.bytes,
                "a rank receives what it sends to itself");
        std::copy_n(send.begin(), send_blocks.total(), receive.begin());
        return;
    }
    const Counts out(send_blocks);
    const Counts in(receive_blocks);
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ialltoallv(send.data(), out.counts.data(), out.starts.data(), out.unit(),
                         receive.data(), in.counts.data(), in.starts.data(), in.unit(),
                         group_->comm, &request));
    pending(request, patience_).wait();
}

Request Communicator::start_broadcast(std::span<std::byte> bytes, int root) const {
    if (!has_mpi()) {
        return {};
    }
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ibcast(bytes.data(), count_of(bytes.size()), MPI_BYTE, root, group_->comm, &request));
    return pending(request, patience_);
}

Request Communicator::start_send(std::span<const std::byte> bytes, int to, int tag) const {
    expects(has_mpi(), "a rank without MPI has no other");
    MPI_Request request = MPI_REQUEST_NULL;
    check(
        MPI_Isend(bytes.data(), count_of(bytes.size()), MPI_BYTE, to, tag, group_->comm, &request));
    return pending(request, patience_);
}

Request Communicator::start_receive(std::span<std::byte> bytes, int from, int tag) const {
    expects(has_mpi(), "a rank without MPI has no other");
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Irecv(bytes.data(), count_of(bytes.size()), MPI_BYTE, from, tag, group_->comm,
                    &request));
    return pending(request, patience_);
}

}  // namespace nearstep::mpi
