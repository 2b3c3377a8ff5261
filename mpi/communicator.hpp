// A group of ranks and its operations on host memory.
//
// All operations are collective over the group unless they say otherwise, must be called by the one
// thread that calls MPI, and wait by polling, so that no wait outlasts the time limit: then, and
// when MPI fails, they throw MpiError.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nearstep::mpi {

// A pending transfer; move-only. Its memory must live until it is complete; the destructor waits.
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

    // True once complete; makes progress.
    bool test();
    void wait();

private:
    std::unique_ptr<State> state_;
};

// One block of bytes per rank of the group, in rank order and without gaps.
struct Blocks {
    std::vector<std::size_t> bytes;  // per rank

    std::size_t total() const;
};

class Communicator {
public:
    // A duplicate of all ranks' communicator, with the time limit of every wait.
    static Communicator world(std::chrono::seconds limit);

    Communicator(Communicator&&) noexcept;
    Communicator& operator=(Communicator&&) noexcept;
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;
    ~Communicator();

    int rank() const { return rank_; }
    int size() const { return size_; }

    // Ranks with the same colour, in the order of their ranks here.
    Communicator split(int colour) const;

    // For each rank the lowest rank that shares its memory, that is, its node's first rank.
    std::vector<int> first_ranks_of_nodes() const;

    void barrier() const;

    // True on every rank only if `ok` is true on every rank. Call it before acting on a local
    // failure, so that no rank waits in a collective the others have left.
    bool agree(bool ok) const;

    // Runs `work` on every rank; if it throws a ConfigError or IoError on some, throws the lowest
    // such rank's on all: the same kind with the same sentence. For what one rank may find and
    // others cannot.
    void together(const std::function<void()>& work) const;

    // The same on all ranks: the root's.
    std::string broadcast(const std::string& value, int root) const;

    // Element-wise sums, the same on all ranks. Where at most one rank gives a non-zero element
    // the sum is exact, whatever the order.
    void sum(std::span<double> values) const;
    void sum(std::span<std::uint64_t> values) const;

    // `mine` of every rank, in rank order; the same length on all.
    std::vector<double> all_gather(std::span<const double> mine) const;

    // send: a block for each rank; receive: a block from each. Sizes are known on both sides.
    void all_to_all(std::span<const std::byte> send, const Blocks& send_blocks,
                    std::span<std::byte> receive, const Blocks& receive_blocks) const;

    // Starts to copy the root's `bytes` to all; the same order of calls on all ranks.
    Request start_broadcast(std::span<std::byte> bytes, int root) const;

    // Point to point, matched by tag; not collective.
    Request start_send(std::span<const std::byte> bytes, int to, int tag) const;
    Request start_receive(std::span<std::byte> bytes, int from, int tag) const;

private:
    struct Group;

    Communicator(std::unique_ptr<Group> group, std::chrono::seconds limit);

    int smallest(int value) const;

    std::unique_ptr<Group> group_;
    std::chrono::seconds limit_{};
    int rank_ = 0;
    int size_ = 0;
};

}  // namespace nearstep::mpi
