// A group of ranks and its operations on host memory. A rank of a job of its own needs no MPI: its
// operations are copies.
//
// Unless stated otherwise, operations are collective over the group. Only the thread that calls MPI
// may call them. They throw MpiError if MPI fails. Waits poll and throw MpiError after the time
// limit, together() after ten times that. MPI makes communicators without one: world(), split() and
// first_ranks_of_nodes() first wait for all ranks with the limit, so only a rank that stops while
// MPI makes one is not noticed.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace nearstep::mpi {

// How long waits of a communicator and of those split from it may take. When one has taken longer,
// the others end at once: the ranks no longer do the same.
struct Patience {
    std::chrono::seconds limit{};
    std::shared_ptr<bool> has_ended = std::make_shared<bool>(false);
};

// A pending transfer; move-only. Its memory must live until it completes; the destructor waits.
class Request {
public:
    struct State;

    Request();
    explicit Request(std::unique_ptr<State> state);
    Request(Request&&) noexcept;
    // NOLINTNEXTLINE(bugprone-exception-escape): as in the source, it ends the process
    Request& operator=(Request&&) noexcept;
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;
    ~Request();  // NOLINT(bugprone-exception-escape): as above

    // Returns true once complete. Lets MPI make progress.
    bool test();
    void wait();

private:
    void finish();

    std::unique_ptr<State> state_;
};

// The collective calls that ranks make at the same time. They differ if the ranks do not do the
// same.
struct MatchedCalls {
    int lowest = 0;
    int rank = 0;  // the lowest one that makes the lowest call
    int highest = 0;
    bool is_raised = false;  // the flag, by any rank
};

// One block of bytes per rank of the group, contiguous in rank order.
struct Blocks {
    std::vector<std::size_t> bytes;  // per rank

    std::size_t total() const;
};

class Communicator {
public:
    // All ranks of MPI if it runs, else this process alone; `limit` is the time limit of every
    // wait.
    static Communicator world(std::chrono::seconds limit);
    // Returns a communicator of this process alone, also while MPI runs.
    static Communicator alone(std::chrono::seconds limit);

    Communicator(Communicator&&) noexcept;
    Communicator& operator=(Communicator&&) noexcept;
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;
    ~Communicator();

    int rank() const { return rank_; }
    int size() const { return size_; }

    // The group of ranks with the same colour, in their rank order here.
    Communicator split(int colour) const;

    // Returns for each rank the lowest rank on the same node (ranks that share memory). MPI is
    // asked once.
    std::vector<int> first_ranks_of_nodes() const;

    void barrier() const;

    // Returns true on every rank only if `ok` is true on every rank. Call it before acting on a
    // local failure, so that no rank waits in a collective that the others have left.
    bool agree(bool ok) const;

    // Runs `work` on every rank. If it throws a ConfigError, PathError or IoError anywhere, all
    // ranks throw the error of the lowest such rank. Use it for errors that only some ranks may
    // see. An Hdf5Error becomes an IoError. A rank with less work waits 10 times the limit for the
    // others.
    void together(const std::function<void()>& work) const;
    // Runs `work` on rank 0 alone. All ranks throw its errors, as with together().
    void on_rank_0(const std::function<void()>& work) const;

    // Waits until all ranks are here, for `limit`, and returns which calls they make. Each rank may
    // raise a flag.
    MatchedCalls match_calls(int call, bool raises, std::chrono::seconds limit) const;

    // Returns the root's `value` on all ranks.
    std::string broadcast(const std::string& value, int root) const;

    // Element-wise sums, the same on all ranks. If at most one rank gives a non-zero element, the
    // sum is exact.
    void sum(std::span<double> values) const;
    void sum(std::span<std::uint64_t> values) const;

    // Returns every rank's `mine` in rank order; all must have the same length.
    std::vector<double> all_gather(std::span<const double> mine) const;

    // `send`: a block for each rank; `receive`: a block from each. Both sides know the sizes.
    void all_to_all(std::span<const std::byte> send, const Blocks& send_blocks,
                    std::span<std::byte> receive, const Blocks& receive_blocks) const;

    // Starts copying the root's `bytes` to all ranks. All ranks start broadcasts in the same order.
    Request start_broadcast(std::span<std::byte> bytes, int root) const;

    // Point to point, matched by tag; not collective. Not for a rank without MPI.
    Request start_send(std::span<const std::byte> bytes, int to, int tag) const;
    Request start_receive(std::span<std::byte> bytes, int from, int tag) const;

private:
    struct RawGroup;

    Communicator(std::unique_ptr<RawGroup> group, Patience patience);

    bool has_mpi() const { return group_ != nullptr; }
    int smallest(int value, const Patience& patience) const;

    std::unique_ptr<RawGroup> group_;  // null: one rank without MPI
    Patience patience_;
    int rank_ = 0;
    int size_ = 1;
};

}  // namespace nearstep::mpi
