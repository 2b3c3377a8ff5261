// Transfers through io_uring, by one thread per ring. Used where the kernel allows it.
#include "base/descriptor.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "store/transport.hpp"

#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <future>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

namespace nearstep::store {

namespace {

// Measured best for direct I/O from huge pages: 8 to 16 chunks of 1.5 to 3 MB in flight. Reads and
// writes get half of them each, so that no direction of a disk waits for the other.
constexpr std::size_t kChunkBytes = 2 * MiB;
constexpr std::size_t kDepthOfDirection = 8;
constexpr std::size_t kDirections = 2;
constexpr std::size_t kDepth = kDirections * kDepthOfDirection;
constexpr std::uint64_t kWakeUp = kDepth;  // user data of the event read that new work completes

// A request in progress: the ring's thread cuts chunks off its front.
struct RingOperation {
    std::size_t file = 0;
    IoRequest rest;
    Completion done = {};
    std::size_t chunks = 0;  // in flight
    std::exception_ptr error = nullptr;
};

struct Chunk {
    std::list<RingOperation>::iterator operation;
    IoRequest request;
    bool was_direct = false;
};

// Moves the first kChunkBytes of `rest`, or all of it if it is smaller, into a request of its own.
IoRequest cut_chunk(IoRequest& rest) {
    IoRequest chunk{.direction = rest.direction, .pieces = {}, .offset = rest.offset};
    std::size_t room = kChunkBytes;
    while (room > 0 && !rest.is_complete() && chunk.pieces.size() < kMostPieces) {
        iovec& piece = rest.pieces[rest.first];
        const std::size_t bytes = std::min(room, piece.iov_len);
        chunk.pieces.push_back({piece.iov_base, bytes});
        piece.iov_base = static_cast<std::byte*>(piece.iov_base) + bytes;
        piece.iov_len -= bytes;
        rest.offset += static_cast<std::int64_t>(bytes);
        rest.first += piece.iov_len == 0 ? 1 : 0;
        room -= bytes;
    }
    return chunk;
}

class UringTransport : public Transport {
public:
    UringTransport(std::vector<File*> files, ResultFilter filter);
    UringTransport(const UringTransport&) = delete;
    UringTransport& operator=(const UringTransport&) = delete;
    ~UringTransport() override;

    IoKind kind() const override { return IoKind::io_uring; }
    Ticket submit(std::size_t file, IoRequest request) override;

private:
    // Work of one direction.
    struct Queue {
        std::list<RingOperation> operations;  // with chunks left to start
        std::vector<std::size_t> free_slots;  // indices into chunks_
    };

    // Flushes go with the writes.
    Queue& queue_of(const RingOperation& operation) {
        return operation.rest.direction == Direction::read ? queues_.front() : queues_.back();
    }
    void wake_up();

    // Everything below is used by the ring's thread only.
    void run(std::promise<void>& opened);
    void open_ring();
    void try_ring();
    bool take_new_work();
    void fill_ring();
    void wait_for_wake_up();
    void start(std::size_t slot);
    void collect();
    void complete(std::size_t slot, std::int64_t result);
    void finish(std::size_t slot);

    std::vector<File*> files_;
    ResultFilter filter_;
    io_uring ring_{};
    Descriptor event_;
    std::uint64_t event_count_ = 0;  // read from event_
    bool is_waiting_ = false;        // the ring holds a pending read of event_
    std::array<Queue, kDirections> queues_;
    std::list<RingOperation> started_;  // with all chunks in flight
    std::array<Chunk, kDepth> chunks_;

    std::mutex mutex_;
    std::list<RingOperation> new_work_;
    bool is_closing_ = false;
    std::thread thread_;
};

// Results by which a sandbox or a kernel refuses an operation, and which a system call may not
// have.
bool is_refusal(std::int64_t result) {
    constexpr std::array<std::int64_t, 4> kRefusals = {-EPERM, -EACCES, -ENOSYS, -EOPNOTSUPP};
    return std::ranges::find(kRefusals, result) != kRefusals.end();
}

ConfigError refusal(const char* call, int reason) {
    return ConfigError{text("The kernel refuses io_uring (", call, ": ", std::strerror(reason),
                            "): set csd.io = \"auto\" or \"threads\", or allow io_uring where "
                            "the job runs (containers often forbid it).")};
}

UringTransport::UringTransport(std::vector<File*> files, ResultFilter filter)
    : files_(std::move(files)), filter_(std::move(filter)), event_(::eventfd(0, EFD_CLOEXEC)) {
    if (!event_) {
        throw refusal("eventfd", errno);
    }
    for (std::size_t i = 0; i < kDepthOfDirection; ++i) {
        queues_.front().free_slots.push_back(i);
        queues_.back().free_slots.push_back(kDepthOfDirection + i);
    }
    std::promise<void> opened;
    std::future<void> is_open = opened.get_future();
    thread_ = std::thread([this, opened = std::move(opened)]() mutable { run(opened); });
    try {
        is_open.get();
    } catch (...) {
        thread_.join();
        throw;
    }
}

// Only the thread that opens the ring may use it. Files are not registered: the kernel would keep
// them open, and locked, for some time after a killed process has ended. At 2 MiB per request
// registration saves nothing measurable.
void UringTransport::open_ring() {
    const auto entries = static_cast<unsigned>(2 * kDepth);
    int result = io_uring_queue_init(entries, &ring_,
                                     IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
    if (result == -EINVAL) {  // before Linux 6.1
        result = io_uring_queue_init(entries, &ring_, 0);
    }
    if (result != 0) {
        throw refusal("io_uring_queue_init", -result);
    }
    try {
        try_ring();
    } catch (...) {
        io_uring_queue_exit(&ring_);
        throw;
    }
}

// A sandbox may allow to set a ring up and refuse to use it, or refuse an operation. Reads the
// event as later, and flushes its descriptor, which does nothing.
void UringTransport::try_ring() {
    wake_up();
    wait_for_wake_up();
    io_uring_sqe* flush = io_uring_get_sqe(&ring_);
    io_uring_prep_fsync(flush, event_.get(), IORING_FSYNC_DATASYNC);
    io_uring_sqe_set_data64(flush, kWakeUp + 1);
    for (int left = 2; left > 0; --left) {
        int result = io_uring_submit_and_wait(&ring_, 1);
        while (result == -EINTR || result == -EAGAIN || result == -EBUSY) {
            result = io_uring_submit_and_wait(&ring_, 1);
        }
        io_uring_cqe* completion = nullptr;
        if (result < 0 || (result = io_uring_wait_cqe(&ring_, &completion)) < 0) {
            throw refusal("io_uring_enter", -result);
        }
        const bool is_read = io_uring_cqe_get_data64(completion) == kWakeUp;
        const int done = completion->res;
        io_uring_cqe_seen(&ring_, completion);
        // The kernel answers EINVAL to a flush of an event, and to a read that it does not know.
        if (is_read ? done < 0 : is_refusal(done)) {
            throw refusal(is_read ? "IORING_OP_READ" : "IORING_OP_FSYNC", -done);
        }
    }
    is_waiting_ = false;
}

UringTransport::~UringTransport() {
    {
        const std::lock_guard lock(mutex_);
        is_closing_ = true;
    }
    wake_up();
    thread_.join();
}

void UringTransport::wake_up() {
    const std::uint64_t one = 1;
    while (::write(event_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
}

Ticket UringTransport::submit(std::size_t file, IoRequest request) {
    expects(file < files_.size(), "a request names one of the transport's files");
    File::prepare(request);
    if (request.is_complete()) {
        return {};
    }
    std::list<RingOperation> work;
    work.push_back({.file = file, .rest = std::move(request)});
    Ticket ticket = work.front().done.ticket();
    {
        const std::lock_guard lock(mutex_);
        new_work_.splice(new_work_.end(), work);
    }
    wake_up();
    return ticket;
}

// An exception after `opened` ends the process, because requests in flight cannot be cancelled.
void UringTransport::run(std::promise<void>& opened) {
    try {
        open_ring();
    } catch (...) {
        opened.set_exception(std::current_exception());
        return;
    }
    opened.set_value();
    while (take_new_work()) {
        fill_ring();
        wait_for_wake_up();
        const int result = io_uring_submit_and_wait(&ring_, 1);
        if (result == -EAGAIN || result == -EBUSY) {
            std::this_thread::yield();
        } else if (result < 0 && result != -EINTR) {
            throw IoError(text("Cannot go on with io_uring (", std::strerror(-result),
                               "): resume from the last checkpoint with csd.io = \"threads\"."));
        }
        collect();
    }
    io_uring_queue_exit(&ring_);
}

// False if no work is left and none can come.
bool UringTransport::take_new_work() {
    const std::lock_guard lock(mutex_);
    while (!new_work_.empty()) {
        std::list<RingOperation>& operations = queue_of(new_work_.front()).operations;
        operations.splice(operations.end(), new_work_, new_work_.begin());
    }
    const bool is_idle = started_.empty() && std::ranges::all_of(queues_, [](const Queue& queue) {
                             return queue.operations.empty();
                         });
    return !(is_closing_ && is_idle);
}

void UringTransport::fill_ring() {
    for (Queue& queue : queues_) {
        while (!queue.operations.empty() && !queue.free_slots.empty()) {
            const auto operation = queue.operations.begin();
            const std::size_t slot = queue.free_slots.back();
            queue.free_slots.pop_back();
            chunks_.at(slot) = {.operation = operation, .request = cut_chunk(operation->rest)};
            ++operation->chunks;
            if (operation->rest.is_complete()) {
                started_.splice(started_.end(), queue.operations, operation);
            }
            start(slot);
        }
    }
}

void UringTransport::wait_for_wake_up() {
    if (!is_waiting_) {
        io_uring_sqe* entry = io_uring_get_sqe(&ring_);
        io_uring_prep_read(entry, event_.get(), &event_count_, sizeof event_count_, 0);
        io_uring_sqe_set_data64(entry, kWakeUp);
        is_waiting_ = true;
    }
}

// The ring has twice as many entries as slots, so one is always free.
void UringTransport::start(std::size_t slot) {
    Chunk& chunk = chunks_.at(slot);
    const File& file = *files_[chunk.operation->file];
    const iovec* pieces = &chunk.request.pieces[chunk.request.first];
    const auto count = static_cast<unsigned>(chunk.request.pieces.size() - chunk.request.first);
    const auto offset = static_cast<std::uint64_t>(chunk.request.offset);
    chunk.was_direct = file.is_direct();
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (chunk.request.direction == Direction::flush) {
        io_uring_prep_fsync(entry, file.descriptor(), IORING_FSYNC_DATASYNC);
    } else if (chunk.request.direction == Direction::read) {
        io_uring_prep_readv(entry, file.descriptor(), pieces, count, offset);
    } else {
        io_uring_prep_writev(entry, file.descriptor(), pieces, count, offset);
    }
    if ((!chunk.was_direct || file.lies_in_memory()) && files_.size() > 1) {
        // Otherwise the kernel may copy through its page cache on this thread, one request after
        // another. A device with one file may do so: it has a ring of its own.
        io_uring_sqe_set_flags(entry, IOSQE_ASYNC);
    }
    io_uring_sqe_set_data64(entry, slot);
}

void UringTransport::collect() {
    io_uring_cqe* completion = nullptr;
    while (io_uring_peek_cqe(&ring_, &completion) == 0) {
        const std::uint64_t slot = io_uring_cqe_get_data64(completion);
        const std::int64_t result = completion->res;
        io_uring_cqe_seen(&ring_, completion);
        if (slot == kWakeUp) {
            is_waiting_ = false;
        } else {
            complete(slot, result);
        }
    }
}

void UringTransport::complete(std::size_t slot, std::int64_t result) {
    Chunk& chunk = chunks_.at(slot);
    RingOperation& operation = *chunk.operation;
    try {
        if (is_refusal(result)) {
            static std::once_flag once;
            std::call_once(once, [&] {
                log_event("io_uring_refused",
                          {{"instead", "system calls"},
                           {"reason", std::strerror(static_cast<int>(-result))}});
            });
            files_[operation.file]->transfer(chunk.request, filter_);
            chunk.request.first = chunk.request.pieces.size();
            finish(slot);
            return;
        }
        files_[operation.file]->complete(chunk.request, chunk.was_direct,
                                         filter_ && chunk.request.direction != Direction::flush
                                             ? filter_(chunk.request, result)
                                             : result);
    } catch (...) {
        // Keeps the first error and drops the chunks not yet started.
        operation.error = operation.error ? operation.error : std::current_exception();
        chunk.request.first = chunk.request.pieces.size();
    }
    if (chunk.request.is_complete()) {
        finish(slot);
    } else {
        start(slot);
    }
}

void UringTransport::finish(std::size_t slot) {
    const auto operation = chunks_.at(slot).operation;
    Queue& queue = queue_of(*operation);
    queue.free_slots.push_back(slot);
    --operation->chunks;
    if (operation->error && !operation->rest.is_complete()) {
        operation->rest.first = operation->rest.pieces.size();
        started_.splice(started_.end(), queue.operations, operation);
    }
    if (operation->chunks > 0 || !operation->rest.is_complete()) {
        return;
    }
    // Whoever waited may end what the error names, so that the operation goes first.
    const Completion done = operation->done;
    const std::exception_ptr error = std::move(operation->error);
    started_.erase(operation);
    done.complete(error);
}

}  // namespace

std::unique_ptr<Transport> make_uring_transport(const std::vector<File*>& files,
                                                const ResultFilter& filter) {
    return std::make_unique<UringTransport>(files, filter);
}

}  // namespace nearstep::store
