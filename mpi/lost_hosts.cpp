// Asks hosts for an answer by TCP. Used by request_wait_polling.cpp and nccl/group_nccl.cpp, and by
// the start, which notes the hosts.
#include "mpi/lost_hosts.hpp"

#include "base/descriptor.hpp"
#include "base/error.hpp"
#include "base/machine.hpp"
#include "base/number_list.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <memory>
#include <mutex>
#include <utility>

namespace nearstep::mpi {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLimit{3};  // ranks that failed wait longer for what others say
constexpr std::size_t kMostAsked = 64;
constexpr const char* kPort = "22";  // ssh's, where a host that is up takes or refuses

struct Noted {
    std::mutex mutex;
    std::vector<std::string> hosts;
};

// A process belongs to one job.
Noted& noted() {
    static Noted hosts;
    return hosts;
}

struct Question {
    std::string name;
    Descriptor socket;
    bool is_open = false;
    bool has_answer = false;
};

// Begins to connect. Empty if the name cannot be resolved.
std::vector<Question> ask(const std::string& name) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* raw = nullptr;
    if (::getaddrinfo(name.c_str(), kPort, &hints, &raw) != 0) {
        return {};
    }
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> found(raw, ::freeaddrinfo);
    Descriptor socket(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int code = ::connect(socket.get(), found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
    std::vector<Question> question;
    question.push_back({.name = name,
                        .socket = std::move(socket),
                        .is_open = code == EINPROGRESS,
                        .has_answer = code == 0 || code == ECONNREFUSED});
    return question;
}

// Whether a connection that poll() reports was taken or refused.
bool is_answer(int socket) {
    int code = 0;
    socklen_t bytes = sizeof(code);
    ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &code, &bytes);
    return code == 0 || code == ECONNREFUSED;
}

}  // namespace

void note_hosts(std::vector<std::string> names) {
    const std::lock_guard lock(noted().mutex);
    noted().hosts = std::move(names);
}

std::vector<std::string> silent_hosts(const std::vector<std::string>& names) {
    const auto end = Clock::now() + kLimit;
    std::vector<Question> questions;
    for (const std::string& name : names) {
        if (Clock::now() < end) {  // a name server may be lost, too
            std::ranges::move(ask(name), std::back_inserter(questions));
        }
    }
    std::vector<pollfd> open;
    open.reserve(questions.size());
    for (const Question& one : questions) {
        open.push_back(
            {.fd = one.is_open ? one.socket.get() : -1, .events = POLLOUT, .revents = 0});
    }
    const auto is_open = [](const pollfd& one) { return one.fd >= 0; };
    while (std::ranges::any_of(open, is_open) && Clock::now() < end) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
        ::poll(open.data(), open.size(), static_cast<int>(left.count()) + 1);
        for (std::size_t i = 0; i < open.size(); ++i) {
            if (is_open(open[i]) && open[i].revents != 0) {
                questions[i].has_answer = is_answer(open[i].fd);
                open[i].fd = -1;
            }
        }
    }
    std::vector<std::string> silent;
    for (const Question& one : questions) {
        if (!one.has_answer) {
            silent.push_back(one.name);
        }
    }
    return silent;
}

std::string describe_silent_hosts() {
    std::vector<std::string> hosts;
    {
        const std::lock_guard lock(noted().mutex);
        hosts = noted().hosts;
    }
    const auto here = std::ranges::find(hosts, own_host());
    if (here != hosts.end()) {
        std::rotate(hosts.begin(), here, hosts.end());
        hosts.erase(hosts.begin());
    }
    hosts.resize(std::min(hosts.size(), kMostAsked));
    const std::vector<std::string> silent = silent_hosts(hosts);
    return silent.empty()
               ? ""
               : text("; no answer from host", silent.size() == 1 ? " " : "s ", first_of(silent));
}

}  // namespace nearstep::mpi
