// A small card device for tests, like the small emulated device of tests/csd.
#pragma once

#include "csd/card_device.hpp"
#include "csd/device_fixture.hpp"
#include "fpga/emulator/xclbin_writer.hpp"
#include "support/places.hpp"
#include "support/test.hpp"

#include <dlfcn.h>

namespace nearstep::csd {

// The .xclbin of emulated cards in the build tree.
inline std::string emulated_xclbin() {
    return std::string(test::kBuildFolder) + "/emulated-card/nearstep.xclbin";
}

// Writes an .xclbin; returns its path.
inline std::string write_xclbin(const ScratchFolder& folder,
                                const emulator::CardDescription& card) {
    const auto bytes = emulator::make_xclbin(card);
    return folder.write("kernels.xclbin",
                        {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

// Plans faults (emulator/faults.hpp) after a card was opened; "" removes all.
inline void plan_faults(const std::string& list) {
    const auto plan =
        reinterpret_cast<int (*)(const char*)>(::dlsym(RTLD_DEFAULT, "nearstep_card_faults"));
    ASSERT_NE(plan, nullptr) << "no emulated card is loaded";
    ASSERT_EQ(plan(list.c_str()), 0);
}

// Counter of an emulated card: bytes synchronised to it (0) and from it (1), bytes of its
// peer-to-peer buffers (2), runs (3).
inline std::uint64_t card_counter(unsigned card, int which) {
    const auto counter = reinterpret_cast<std::uint64_t (*)(unsigned, int)>(
        ::dlsym(RTLD_DEFAULT, "nearstep_card_counter"));
    return counter == nullptr ? 0 : counter(card, which);
}

// The small device, with its files used by a card. Scratch folders are in the build tree, whose
// filesystem supports direct I/O.
class SmallCard : public SmallDevice {
public:
    explicit SmallCard(const SmallDeviceSettings& wanted, const std::string& card = "0",
                       std::chrono::milliseconds longest_run = std::chrono::seconds(60))
        : SmallDevice(wanted), card_(card), longest_run_(longest_run) {
        use_card();
    }

    void use_card() {
        device.reset();
        device = make_card_device(
            settings, {.card = card_, .xclbin = emulated_xclbin(), .longest_run = longest_run_},
            traffic);
    }
    void use_host() {
        device.reset();
        device = make_cpu_device(settings, traffic);
    }

private:
    std::string card_;
    std::chrono::milliseconds longest_run_;
};

}  // namespace nearstep::csd
