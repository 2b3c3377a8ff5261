// Answers what XRT asks an emulated card besides the C driver API: its index by name, the number of
// cards, and its properties. The link step replaces functions of Debian's objects by these.
#include "fpga/emulator/board.hpp"
#include "fpga/emulator/xrt_glue.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <vector>

namespace {

using xrt_core::device;
using xrt_core::query::key_type;
using xrt_core::query::no_such_key;
using xrt_core::query::request;

// Card i has the address 0000:e0:0i.1. Small machines rarely have a real card on bus e0.
constexpr std::uint16_t kBus = 0xE0;
constexpr std::uint16_t kFunction = 1;

// Reads the index where XRT 2.13 stores it in its base class of devices: after the vtable pointer.
unsigned index_of(const device* card) {
    unsigned index = 0;
    std::memcpy(&index, reinterpret_cast<const char*>(card) + sizeof(void*), sizeof index);
    return index;
}

class Answer : public request {
public:
    explicit Answer(std::function<boost::any(unsigned)> answer) : answer_(std::move(answer)) {}
    boost::any get(const device* card) const override { return answer_(index_of(card)); }

private:
    std::function<boost::any(unsigned)> answer_;
};

using Answers = std::map<key_type, std::unique_ptr<request>>;

// XRT casts to exactly these types.
Answers make_answers() {
    Answers answers;
    const auto add = [&](key_type key, std::function<boost::any(unsigned)> answer) {
        answers[key] = std::make_unique<Answer>(std::move(answer));
    };
    add(key_type::pcie_bdf, [](unsigned index) {
        return std::tuple<std::uint16_t, std::uint16_t, std::uint16_t, std::uint16_t>(
            0, kBus, static_cast<std::uint16_t>(index), kFunction);
    });
    add(key_type::rom_vbnv, [](unsigned) { return std::string("xilinx_u2_emulated"); });
    add(key_type::rom_ddr_bank_size_gb, [](unsigned) { return std::uint64_t{4}; });
    add(key_type::rom_ddr_bank_count_max, [](unsigned) { return std::uint64_t{1}; });
    add(key_type::rom_time_since_epoch, [](unsigned) { return std::uint64_t{1}; });
    add(key_type::m2m, [](unsigned) { return std::uint32_t{0}; });
    add(key_type::nodma, [](unsigned) { return std::uint32_t{0}; });
    add(key_type::kds_numcdmas, [](unsigned) { return std::uint32_t{0}; });
    add(key_type::clock_freqs_mhz, [](unsigned) { return std::vector<std::string>{"300"}; });
    add(key_type::temp_fpga,
        [](unsigned index) { return nearstep::emulator::faults().temperature(index); });
    add(key_type::is_offline, [](unsigned) { return false; });
    add(key_type::interface_uuids,
        [](unsigned) { return std::vector<std::string>{"6e6561727374657000000000656d756c"}; });
    add(key_type::logic_uuids,
        [](unsigned) { return std::vector<std::string>{"6e6561727374657000000000656d756c"}; });
    add(key_type::p2p_config, [](unsigned) {
        return std::vector<std::string>{"bar:4", "exp_bar:4", "rbar:4", "max_bar:4", "remap:0"};
    });
    return answers;
}

// Size of a loaded symbol; 0 if unknown.
std::size_t symbol_bytes(const char* name) {
    const void* address = ::dlsym(RTLD_DEFAULT, name);
    Dl_info info{};
    ElfW(Sym)* symbol = nullptr;
    const bool is_found =
        address != nullptr &&
        ::dladdr1(address, &info, reinterpret_cast<void**>(&symbol), RTLD_DL_SYMENT) != 0 &&
        symbol != nullptr;
    return is_found ? symbol->st_size : 0;
}

// A library of another release has different virtual function tables, so the process ends with a
// message rather than call wrong functions.
__attribute__((constructor)) void check_library() {
    constexpr std::size_t kDeviceTableBytes = 584;
    constexpr std::size_t kSystemTableBytes = 112;
    const bool has_tables = symbol_bytes("_ZTVN8xrt_core6deviceE") == kDeviceTableBytes &&
                            symbol_bytes("_ZTVN8xrt_core6systemE") == kSystemTableBytes;
    const auto* missing_key = static_cast<const std::type_info*>(
        ::dlsym(RTLD_DEFAULT, "_ZTIN8xrt_core5query11no_such_keyE"));
    const bool has_exception = missing_key != nullptr && *missing_key == typeid(no_such_key);
    if (!has_tables || !has_exception) {
        std::fprintf(stderr,
                     "emulated card: libxrt_coreutil is not that of XRT 2.13 for which this driver "
                     "was built: rebuild nearstep on this machine.\n");
        std::abort();
    }
}

}  // namespace

// XRT's C++ code calls these by their assembler names and with C++ types, so extern "C" is not
// used.
__attribute__((visibility("default"))) unsigned emu_get_device_id(
    const void*, const std::string&) asm("emu_get_device_id");
__attribute__((visibility("default"))) std::pair<unsigned, unsigned> emu_get_total_devices(
    const void*, bool) asm("emu_get_total_devices");
__attribute__((visibility("default"))) const request& emu_lookup(const void*,
                                                                 key_type) asm("emu_lookup");
__attribute__((visibility("default"))) void emu_unsupported() asm("emu_unsupported");

// Accepts "2" or "0000:e0:02.1". Otherwise throws an exception that XRT turns into its own message.
unsigned emu_get_device_id(const void*, const std::string& name) {
    unsigned domain = 0;
    unsigned bus = 0;
    unsigned index = 0;
    unsigned function = 0;
    const bool is_address =
        std::sscanf(name.c_str(), "%x:%x:%x.%u", &domain, &bus, &index, &function) == 4;
    if (is_address && domain == 0 && bus == kBus && function == kFunction) {
        return index;
    }
    if (is_address || name.find_first_not_of("0123456789") != std::string::npos) {
        throw std::runtime_error("No such device '" + name + "'");
    }
    return static_cast<unsigned>(std::stoul(name));
}

std::pair<unsigned, unsigned> emu_get_total_devices(const void*, bool) {
    const unsigned count = nearstep::emulator::board_count();
    return {count, count};
}

const request& emu_lookup(const void*, key_type key) {
    static const Answers* answers = std::make_unique<Answers>(make_answers()).release();
    const auto found = answers->find(key);
    if (found == answers->end()) {
        throw no_such_key(key, "The emulated card has no answer to query " +
                                   std::to_string(static_cast<int>(key)));
    }
    return *found->second;
}

void emu_unsupported() { throw std::runtime_error("An emulated card has no AI engines."); }
