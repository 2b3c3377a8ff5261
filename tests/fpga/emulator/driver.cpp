// The C driver API of XRT (xrt.h) for emulated boards. Debian's own objects (see CMakeLists.txt)
// and XRT's library call it.
#include "fpga/emulator/board.hpp"
#include "fpga/emulator/open.hpp"
#include "fpga/emulator/xrt_glue.hpp"

#include <experimental/xrt-next.h>
#include <xclbin.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <system_error>

// NOLINTBEGIN(readability-identifier-naming, readability-inconsistent-declaration-parameter-name):
// XRT's names

namespace {

using nearstep::emulator::Board;
using nearstep::emulator::find_board;
using nearstep::emulator::Open;
using nearstep::emulator::Uuid;

// XRT keeps only a weak pointer to its object of an open card; this pointer keeps it alive.
struct OpenCard {
    explicit OpenCard(Board& board) : open(board) {}

    Open open;
    std::shared_ptr<xrt_core::device> core;
};

OpenCard& card_of(xclDeviceHandle handle) { return *static_cast<OpenCard*>(handle); }
Open& open_of(xclDeviceHandle handle) { return card_of(handle).open; }

int negative_errno() {
    try {
        throw;
    } catch (const std::system_error& error) {
        return -error.code().value();
    } catch (const std::bad_alloc&) {
        return -ENOMEM;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "emulated card: %s\n", error.what());
        return -EINVAL;
    }
}

// Turns exceptions into errno values, because they must not leave a C function.
template <typename Action>
int code_of(const Action& action) {
    try {
        action();
        return 0;
    } catch (...) {
        return negative_errno();
    }
}

Uuid uuid_of(const unsigned char* bytes) {
    Uuid uuid{};
    std::memcpy(uuid.data(), bytes, uuid.size());
    return uuid;
}

}  // namespace

extern "C" {

unsigned int xclProbe() { return nearstep::emulator::board_count(); }

xclDeviceHandle xclOpen(unsigned int index, const char*, xclVerbosityLevel) {
    Board* board = find_board(index);
    if (board == nullptr) {
        return nullptr;
    }
    // Never freed: XRT identifies open cards by their address.
    auto* card = std::make_unique<OpenCard>(*board).release();
    card->core = xrt_core::get_userpf_device(card, index);
    return card;
}

void xclClose(xclDeviceHandle) {}

int xclGetDeviceInfo2(xclDeviceHandle, xclDeviceInfo2* info) {
    constexpr unsigned short kClockMhz = 300;
    *info = {};
    std::strncpy(info->mName, "xilinx_u2_emulated", sizeof info->mName - 1);
    info->mOCLFrequency[0] = kClockMhz;
    return 0;
}

int xclLoadXclBin(xclDeviceHandle handle, const axlf* file) {
    return code_of([&] {
        open_of(handle).board().load(*file);
        card_of(handle).core->register_axlf(file);
    });
}

int xclOpenContext(xclDeviceHandle handle, const xuid_t uuid, unsigned int unit, bool) {
    return code_of([&] { open_of(handle).board().check_context(uuid_of(uuid), unit); });
}

int xclCloseContext(xclDeviceHandle, const xuid_t, unsigned int) { return 0; }

xclBufferHandle xclAllocUserPtrBO(xclDeviceHandle handle, void* user, size_t bytes,
                                  unsigned flags) {
    try {
        return open_of(handle).allocate(user, bytes, flags);
    } catch (...) {
        negative_errno();
        return XRT_NULL_BO;
    }
}

xclBufferHandle xclAllocBO(xclDeviceHandle handle, size_t bytes, int, unsigned flags) {
    return xclAllocUserPtrBO(handle, nullptr, bytes, flags);
}

void xclFreeBO(xclDeviceHandle handle, xclBufferHandle buffer) { open_of(handle).release(buffer); }

void* xclMapBO(xclDeviceHandle handle, xclBufferHandle buffer, bool) {
    void* mapped = nullptr;
    code_of([&] { mapped = open_of(handle).map(buffer); });
    return mapped;
}

int xclUnmapBO(xclDeviceHandle, xclBufferHandle, void*) { return 0; }

int xclSyncBO(xclDeviceHandle handle, xclBufferHandle buffer, xclBOSyncDirection direction,
              size_t bytes, size_t offset) {
    return code_of([&] { open_of(handle).synchronise(buffer, direction, bytes, offset); });
}

int xclCopyBO(xclDeviceHandle handle, xclBufferHandle to, xclBufferHandle from, size_t bytes,
              size_t to_offset, size_t from_offset) {
    return code_of([&] { open_of(handle).copy(to, from, bytes, to_offset, from_offset); });
}

int xclGetBOProperties(xclDeviceHandle handle, xclBufferHandle buffer, xclBOProperties* out) {
    return code_of([&] { open_of(handle).describe(buffer, *out); });
}

xclBufferExportHandle xclExportBO(xclDeviceHandle, xclBufferHandle) { return XRT_NULL_BO_EXPORT; }

xclBufferHandle xclImportBO(xclDeviceHandle, xclBufferExportHandle, unsigned) {
    return XRT_NULL_BO;
}

int xclExecBuf(xclDeviceHandle handle, xclBufferHandle command) {
    return code_of([&] { open_of(handle).execute(command); });
}

int xclExecWait(xclDeviceHandle handle, int milliseconds) {
    return open_of(handle).wait_for_completion(milliseconds) ? 1 : 0;
}

int xclRegRead(xclDeviceHandle, uint32_t, uint32_t, uint32_t*) { return -EOPNOTSUPP; }
int xclRegWrite(xclDeviceHandle, uint32_t, uint32_t, uint32_t) { return -EOPNOTSUPP; }
int xclReClock2(xclDeviceHandle, unsigned short, const unsigned short*) { return -EOPNOTSUPP; }
int xclP2pEnable(xclDeviceHandle, bool, bool) { return 0; }

ssize_t xclUnmgdPread(xclDeviceHandle, unsigned, void*, size_t, uint64_t) { return -EOPNOTSUPP; }
ssize_t xclUnmgdPwrite(xclDeviceHandle, unsigned, const void*, size_t, uint64_t) {
    return -EOPNOTSUPP;
}
size_t xclRead(xclDeviceHandle, xclAddressSpace, uint64_t, void*, size_t) { return 0; }
size_t xclWrite(xclDeviceHandle, xclAddressSpace, uint64_t, const void*, size_t) { return 0; }

}  // extern "C"

// Ordinary programs never call these. Debian's objects expect C++ names.
int xclCmaEnable(void*, bool, uint64_t) { return -ENXIO; }
int xclCloseExportHandle(int) { return 0; }
int xclInternalResetDevice(void*, xclResetKind) { return 0; }
int xclUpdateSchedulerStat(void*) { return 0; }

namespace xclcpuemhal2 {

class CpuemShim {
public:
    static CpuemShim* handleCheck(void*);
    int deviceQuery(xrt_core::query::key_type);
};

CpuemShim* CpuemShim::handleCheck(void*) { return nullptr; }
int CpuemShim::deviceQuery(xrt_core::query::key_type) { return 0; }

}  // namespace xclcpuemhal2

// NOLINTEND(readability-identifier-naming, readability-inconsistent-declaration-parameter-name)
