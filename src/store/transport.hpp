// How transfers reach the kernel: through io_uring, or through threads with system calls.
#pragma once

#include "base/executor.hpp"
#include "config/enumerations.hpp"
#include "store/file.hpp"

#include <cstddef>
#include <memory>
#include <vector>

namespace nearstep::store {

// automatic: io_uring if the kernel allows it, else threads.
using config::IoKind;
using nearstep::name_of;

// Moves requests of a fixed list of files, which outlive it. Any thread may submit. The memory of a
// request stays valid until its ticket was waited for; wait() rethrows IoError. Requests of one
// file may overtake each other. The destructor finishes submitted requests.
class Transport {
public:
    // Throws ConfigError if io_uring is asked for and the kernel refuses. automatic then uses
    // threads and logs the reason once per process.
    static std::unique_ptr<Transport> make(IoKind kind, const std::vector<File*>& files,
                                           const ResultFilter& filter);

    virtual ~Transport() = default;

    // The transport that was chosen; it is never IoKind::automatic.
    virtual IoKind kind() const = 0;

    // `file` is the position in the list.
    virtual Ticket submit(std::size_t file, IoRequest request) = 0;
};

// One io_uring, used only by its own thread. Throws ConfigError naming the kernel's reason.
std::unique_ptr<Transport> make_uring_transport(const std::vector<File*>& files,
                                                const ResultFilter& filter);

}  // namespace nearstep::store
