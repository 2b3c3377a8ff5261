// Chooses between io_uring and threads. Used by Volume.
#include "store/transport.hpp"

#include "base/error.hpp"
#include "base/log.hpp"

#include <mutex>

namespace nearstep::store {

const char* name_of(IoKind kind) {
    switch (kind) {
        case IoKind::automatic:
            return "auto";
        case IoKind::io_uring:
            return "io_uring";
        case IoKind::threads:
            break;
    }
    return "threads";
}

IoKind parse_io_kind(const std::string& name) {
    for (const IoKind kind : {IoKind::automatic, IoKind::io_uring, IoKind::threads}) {
        if (name == name_of(kind)) {
            return kind;
        }
    }
    throw ConfigError(
        text("There is no I/O of the kind \"", name, R"(": use "auto", "io_uring" or "threads".)"));
}

std::unique_ptr<Transport> Transport::make(IoKind kind, const std::vector<File*>& files,
                                           const ResultFilter& filter) {
    if (kind == IoKind::threads) {
        return make_thread_transport(files, filter);
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
        return make_thread_transport(files, filter);
    }
}

}  // namespace nearstep::store
