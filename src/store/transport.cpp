// Transfers by system calls on threads, and the choice between them and io_uring. Used by Volume.
#include "store/transport.hpp"

#include "base/error.hpp"
#include "base/log.hpp"

#include <mutex>
#include <utility>

namespace nearstep::store {

namespace {

class ThreadTransport : public Transport {
public:
    ThreadTransport(const std::vector<File*>& files, ResultFilter filter)
        : filter_(std::move(filter)) {
        for (File* file : files) {
            members_.push_back(std::make_unique<Member>());
            members_.back()->file = file;
        }
    }

    IoKind kind() const override { return IoKind::threads; }

    Ticket submit(std::size_t file, IoRequest request) override {
        Member& member = *members_.at(file);
        Executor& thread = request.direction == Direction::read ? member.reads : member.writes;
        return thread.submit([this, &member, request = std::move(request)] {
            member.file->transfer(request, filter_);
        });
    }

private:
    struct Member {
        File* file = nullptr;
        Executor reads{1};
        Executor writes{1};
    };

    ResultFilter filter_;
    std::vector<std::unique_ptr<Member>>
        members_;  // last, so that threads end before what they use
};

}  // namespace

std::unique_ptr<Transport> Transport::make(IoKind kind, const std::vector<File*>& files,
                                           const ResultFilter& filter) {
    if (kind == IoKind::threads) {
        return std::make_unique<ThreadTransport>(files, filter);
    }
    try {
        return make_uring_transport(files, filter);
    } catch (const ConfigError& refusal) {
        if (kind == IoKind::io_uring) {
            throw;
        }
        static std::once_flag once;
        std::call_once(once, [&] {
            log_event("io_uring_refused", {{"instead", "threads"}, {"reason", refusal.what()}});
        });
        return std::make_unique<ThreadTransport>(files, filter);
    }
}

}  // namespace nearstep::store
