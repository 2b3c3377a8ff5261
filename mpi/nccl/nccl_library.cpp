// Loads NCCL's library and finds its functions there. Used by group_nccl.cpp.
#include "mpi/nccl/nccl_library.hpp"

#include "base/error.hpp"

#include <dlfcn.h>

#include <optional>

namespace nearstep::nccl {

namespace {

template <typename Function>
void find(void* library, const char* name, Function*& function) {
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): as POSIX has it
    function = reinterpret_cast<Function*>(::dlsym(library, name));
    expects(function != nullptr, "NCCL is 2.18 or newer");
}

std::optional<NcclLibrary> load() {
    void* const library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        return std::nullopt;
    }
    NcclLibrary found{};
    find(library, "ncclGetVersion", found.get_version);
    find(library, "ncclGetErrorString", found.error_text);
    find(library, "ncclGetLastError", found.last_error);
    find(library, "ncclGetUniqueId", found.make_id);
    find(library, "ncclCommInitRankConfig", found.start);
    find(library, "ncclCommGetAsyncError", found.ask);
    find(library, "ncclCommFinalize", found.finalize);
    find(library, "ncclCommDestroy", found.destroy);
    find(library, "ncclCommAbort", found.abort);
    find(library, "ncclReduceScatter", found.reduce_scatter);
    find(library, "ncclAllGather", found.all_gather);
    find(library, "ncclGroupStart", found.begin_group);
    find(library, "ncclGroupEnd", found.end_group);
    find(library, "ncclSend", found.send);
    find(library, "ncclRecv", found.receive);
    return found;
}

}  // namespace

const NcclLibrary* find_library() {
    static const std::optional<NcclLibrary> found = load();
    return found ? &*found : nullptr;
}

const NcclLibrary& library() {
    const NcclLibrary* const found = find_library();
    if (found == nullptr) {
        throw NcclError(
            "libnccl.so.2 was not found: install it, as with pip install nvidia-nccl-cu13, or set "
            "exchange.transport to \"mpi\".");
    }
    return *found;
}

}  // namespace nearstep::nccl
