// nearstep_write_xclbin FILE UNITS: writes the .xclbin of an emulated card with all of nearstep's
// kernels and UNITS compute units of the updater.
#include "fpga/emulator/xclbin_writer.hpp"

#include <fstream>
#include <iostream>
#include <string>

int main(int count, char** words) {
    using namespace nearstep;
    if (count != 3) {
        std::cerr << "use nearstep_write_xclbin FILE UNITS\n";
        return 2;
    }
    emulator::CardDescription card;
    for (const fpga::KernelDescription& kernel : fpga::kKernels) {
        const bool is_updater = std::string(kernel.name) == "nearstep_updater";
        card.kernels.push_back({kernel, is_updater ? std::atoi(words[2]) : 1});
    }
    const auto bytes = emulator::make_xclbin(card);
    std::ofstream file(words[1], std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    return file.flush() ? 0 : 1;
}
