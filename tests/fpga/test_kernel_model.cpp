#include "fpga/emulator/call_kernel.hpp"
#include "fpga/test_kernel.hpp"

namespace nearstep::emulator {

void add_words(const fpga::Word* one, const fpga::Word* other, fpga::Word* sum,
               std::uint32_t words) {
    for (std::uint32_t i = 0; i < words; ++i) {
        for (std::size_t j = 0; j < fpga::kWordUnits; ++j) {
            sum[i].of[j] = one[i].of[j] + other[i].of[j];
        }
    }
}

}  // namespace nearstep::emulator

extern "C" int nearstep_model_add_words(const nearstep::emulator::KernelCall& call) {
    return nearstep::emulator::call_kernel(nearstep::emulator::add_words, nearstep::emulator::kAdd,
                                           call);
}
