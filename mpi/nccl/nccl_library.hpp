// NCCL's functions, in the library that the process loads when it first needs them.
#pragma once

#include <nccl.h>

namespace nearstep::nccl {

struct NcclLibrary {
    decltype(&ncclGetVersion) get_version;
    decltype(&ncclGetErrorString) error_text;
    decltype(&ncclGetLastError) last_error;
    decltype(&ncclGetUniqueId) make_id;
    decltype(&ncclCommInitRankConfig) start;
    decltype(&ncclCommGetAsyncError) ask;
    decltype(&ncclCommFinalize) finalize;
    decltype(&ncclCommDestroy) destroy;
    decltype(&ncclCommAbort) abort;
    decltype(&ncclReduceScatter) reduce_scatter;
    decltype(&ncclAllGather) all_gather;
    decltype(&ncclGroupStart) begin_group;
    decltype(&ncclGroupEnd) end_group;
    decltype(&ncclSend) send;
    decltype(&ncclRecv) receive;
};

// Null if the process cannot load libnccl.so.2. Any thread may call it.
const NcclLibrary* find_library();

// Returns the library for a Group and its operations. There is no Group without the library.
const NcclLibrary& library();

}  // namespace nearstep::nccl
