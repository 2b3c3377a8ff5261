// Replaces collectives that SMPI does with messages between all pairs of ranks. The linker
// substitutes them (--wrap), and they return when they have ended, because callers wait at once.
//
// MPI_Ialltoallv: SMPI's sends a message to every rank, even of 0 bytes, and scans all others when
// one ends. At a thousand ranks this takes most of the simulator's time. Open MPI skips empty
// messages, as this one does.
// MPI_Iallgather and MPI_Iallreduce: the blocking ones have an algorithm (--cfg=smpi/allgather),
// these send a million messages at once at a thousand ranks.
#include <mpi.h>

#include <cstddef>
#include <cstring>
#include <vector>

namespace {

constexpr int kTag = 32000;  // above the tags of the exchange, which are those of subgroups

}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier): the name that the linker looks for.
extern "C" int __wrap_MPI_Ialltoallv(const void* send, const int* send_counts,
                                     const int* send_starts, MPI_Datatype /*bytes*/, void* receive,
                                     const int* receive_counts, const int* receive_starts,
                                     MPI_Datatype /*bytes*/, MPI_Comm comm, MPI_Request* request) {
    // NOLINTEND(bugprone-reserved-identifier)
    int rank = 0;
    int ranks = 0;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    const auto* from = static_cast<const std::byte*>(send);
    auto* to = static_cast<std::byte*>(receive);
    std::vector<MPI_Request> pending;
    for (int other = 0; other < ranks; ++other) {
        if (other != rank && receive_counts[other] > 0) {
            MPI_Irecv(to + receive_starts[other], receive_counts[other], MPI_BYTE, other, kTag,
                      comm, &pending.emplace_back(MPI_REQUEST_NULL));
        }
    }
    for (int other = 0; other < ranks; ++other) {
        if (other != rank && send_counts[other] > 0) {
            MPI_Isend(from + send_starts[other], send_counts[other], MPI_BYTE, other, kTag, comm,
                      &pending.emplace_back(MPI_REQUEST_NULL));
        }
    }
    std::memcpy(to + receive_starts[rank], from + send_starts[rank],
                static_cast<std::size_t>(receive_counts[rank]));
    for (MPI_Request& one : pending) {
        MPI_Wait(&one, MPI_STATUS_IGNORE);
    }
    *request = MPI_REQUEST_NULL;
    return MPI_SUCCESS;
}

// NOLINTBEGIN(bugprone-reserved-identifier): the names that the linker looks for.
extern "C" int __wrap_MPI_Iallgather(const void* mine, int mine_count, MPI_Datatype mine_type,
                                     void* all, int count, MPI_Datatype type, MPI_Comm comm,
                                     MPI_Request* request) {
    *request = MPI_REQUEST_NULL;
    return MPI_Allgather(mine, mine_count, mine_type, all, count, type, comm);
}

extern "C" int __wrap_MPI_Iallreduce(const void* mine, void* all, int count, MPI_Datatype type,
                                     MPI_Op op, MPI_Comm comm, MPI_Request* request) {
    *request = MPI_REQUEST_NULL;
    return MPI_Allreduce(mine, all, count, type, op, comm);
}
// NOLINTEND(bugprone-reserved-identifier)
