// Transfers by system calls on threads. Used where io_uring is not allowed or not asked for.
#include "store/transport.hpp"

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

    Ticket submit(std::size_t file, Request request) override {
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

std::unique_ptr<Transport> make_thread_transport(const std::vector<File*>& files,
                                                 const ResultFilter& filter) {
    return std::make_unique<ThreadTransport>(files, filter);
}

}  // namespace nearstep::store
