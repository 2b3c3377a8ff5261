// Runs in tests in place of a program that forked.py has loaded: asks its server for a fork.
//   start_fork ARGUMENTS...
// Passes its environment, folder, standard files and signals to the fork, ends as the fork ends,
// and takes it along when it is killed itself. NEARSTEP_FORKS names the server's OMP_NUM_THREADS,
// its socket and the program, with ":" between them.
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace {

constexpr std::array kPassedOn = {SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

int server = -1;  // NOLINT: a signal handler has no other way to know it

void pass_on(int number) {
    const auto byte = static_cast<char>(number);
    [[maybe_unused]] const auto sent = ::send(server, &byte, 1, MSG_NOSIGNAL);
}

[[noreturn]] void fail(const char* what) {
    std::perror(what);
    std::_Exit(1);
}

std::string_view variable(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

void connect_to(std::string_view path) {
    server = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    if (::connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        fail("start_fork: no connection to the server");
    }
}

// The lines of the request end with a zero: folder, ignored signals, number of words, words,
// environment.
std::string request_of(int words, char** arguments) {
    std::array<char, 4096> folder{};
    if (::getcwd(folder.data(), folder.size()) == nullptr) {
        fail("start_fork: no folder");
    }
    std::string request(folder.data());
    request += '\0';
    for (const int number : kPassedOn) {
        struct sigaction action {};
        ::sigaction(number, nullptr, &action);
        if (action.sa_handler == SIG_IGN) {
            request += std::to_string(number) + " ";
        } else {
            action = {};
            action.sa_handler = pass_on;
            action.sa_flags = SA_RESTART;
            ::sigaction(number, &action, nullptr);
        }
    }
    request += '\0' + std::to_string(words) + '\0';
    for (int i = 0; i < words; ++i) {
        request.append(arguments[i]) += '\0';
    }
    for (char** one = environ; *one != nullptr; ++one) {
        request.append(*one) += '\0';
    }
    return request;
}

// Sends the length with the three standard files, then the request.
void send_request(const std::string& request) {
    auto length = static_cast<std::uint32_t>(request.size());
    iovec part{&length, sizeof length};
    const std::array files = {0, 1, 2};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof files)> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof files);
    std::memcpy(CMSG_DATA(header), files.data(), sizeof files);
    if (::sendmsg(server, &message, MSG_NOSIGNAL) != sizeof length) {
        fail("start_fork: the server does not listen");
    }
    for (std::size_t sent = 0; sent < request.size();) {
        const ssize_t more =
            ::send(server, request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
        if (more < 0) {
            fail("start_fork: the server does not listen");
        }
        sent += static_cast<std::size_t>(more);
    }
}

[[noreturn]] void end_as_the_fork_ends() {
    std::array<char, 16> answer{};
    const ssize_t read = ::recv(server, answer.data(), answer.size() - 1, 0);
    const int code = read > 0 ? std::atoi(answer.data()) : -SIGKILL;
    if (code < 0) {
        ::signal(-code, SIG_DFL);
        ::kill(::getpid(), -code);
    }
    std::_Exit(code < 0 ? 128 - code : code);
}

}  // namespace

namespace {

// Whether the program must start itself: with another OMP_NUM_THREADS than the server, which
// libraries read when they are loaded; for options, such as python -c; and for nearstep report,
// which looks for files beside the program.
bool needs_program_itself(std::string_view threads, int argc, char** argv) {
    const std::string_view first = argc > 1 ? argv[1] : "";
    return variable("OMP_NUM_THREADS") != threads || first.substr(0, 1) == "-" || first == "report";
}

}  // namespace

int main(int argc, char** argv) {
    std::string forks(variable("NEARSTEP_FORKS"));
    const std::size_t socket = forks.find(':') + 1;
    const std::size_t program = forks.find(':', socket) + 1;
    if (socket == 0 || program == 0) {
        std::fputs("start_fork: NEARSTEP_FORKS names no server\n", stderr);
        return 1;
    }
    if (needs_program_itself(std::string_view(forks).substr(0, socket - 1), argc, argv)) {
        argv[0] = &forks[program];
        ::execv(argv[0], argv);
        fail("start_fork: the program cannot be started");
    }
    connect_to(std::string_view(forks).substr(socket, program - socket - 1));
    // A signal that is passed on must not come amid the request.
    sigset_t passed_on;
    sigset_t before;
    ::sigemptyset(&passed_on);
    for (const int number : kPassedOn) {
        ::sigaddset(&passed_on, number);
    }
    ::sigprocmask(SIG_BLOCK, &passed_on, &before);
    send_request(request_of(argc - 1, argv + 1));
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    end_as_the_fork_ends();
}
