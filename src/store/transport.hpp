// How transfers reach the kernel: through an io_uring, or through threads that call it.
#pragma once

#include "store/file.hpp"
#include "store/ticket.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace nearstep::store {

// automatic: an io_uring where the kernel lets us have one, else threads.
enum class IoKind { automatic, io_uring, threads };

// "auto", "io_uring", "threads": the words of csd.io.
const char* name_of(IoKind kind);
// Throws ConfigError naming the three.
IoKind parse_io_kind(const std::string& name);

// Moves requests of a fixed list of files, which outlive it. Any thread may submit; the memory of a
// request stays valid until its ticket was waited for, which rethrows IoError. Requests of a file
// may overtake each other. The destructor finishes what was submitted.
class Transport {
public:
    // Throws ConfigError if io_uring is asked for and the kernel refuses; automatic logs the
    // kernel's reason, once in a process, and takes threads.
    static std::unique_ptr<Transport> make(IoKind kind, const std::vector<File*>& files,
                                           const ResultFilter& filter);

    virtual ~Transport() = default;

    // Never automatic.
    virtual IoKind kind() const = 0;

    // `file`: its position in the list.
    virtual Ticket submit(std::size_t file, Request request) = 0;
};

// A ring and a thread that alone uses it. Throws ConfigError naming the kernel's reason.
std::unique_ptr<Transport> make_uring_transport(const std::vector<File*>& files,
                                                const ResultFilter& filter);

// Two threads for each file, one that reads and one that writes.
std::unique_ptr<Transport> make_thread_transport(const std::vector<File*>& files,
                                                 const ResultFilter& filter);

}  // namespace nearstep::store
