// Calls a kernel's C++ function with arguments from a compute unit's registers, at the offsets of
// the kernel's table. Used by compute units.
#include "fpga/emulator/emulated_kernels.hpp"

#include "fpga/kernel/arguments.hpp"
#include "fpga/kernel/updater.hpp"

#include <cstddef>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

namespace nearstep::emulator {

namespace {

struct KernelCall {
    const fpga::KernelDescription& kernel;
    const std::vector<std::uint32_t>& registers;
    const Translate& translate;
    bool is_valid = true;  // all arguments so far

    template <typename T>
    T argument(std::size_t index) {
        using Stored = std::conditional_t<std::is_pointer_v<T>, std::uint64_t, T>;
        const std::size_t offset = fpga::register_offset(kernel, index);
        Stored stored{};
        if (offset + sizeof stored > registers.size() * sizeof(std::uint32_t)) {
            is_valid = false;
            return T{};
        }
        std::memcpy(&stored, reinterpret_cast<const std::byte*>(registers.data()) + offset,
                    sizeof stored);
        if constexpr (std::is_pointer_v<T>) {
            // The registers do not say how much of the buffer the kernel uses, so only one beat is
            // checked.
            void* memory = translate(stored, fpga::kWordBytes);
            is_valid = is_valid && memory != nullptr && stored % fpga::kWordBytes == 0;
            return static_cast<T>(memory);
        } else {
            return stored;
        }
    }

    template <typename... Parameters, std::size_t... kIndices>
    bool run(void (*function)(Parameters...), std::index_sequence<kIndices...>) {
        const std::tuple<Parameters...> arguments{argument<Parameters>(kIndices)...};
        if (is_valid) {
            std::apply(function, arguments);
        }
        return is_valid;
    }
    template <typename... Parameters>
    bool run(void (*function)(Parameters...)) {
        return run(function, std::index_sequence_for<Parameters...>());
    }
};

}  // namespace

bool run_kernel(const std::string& name, const std::vector<std::uint32_t>& registers,
                const Translate& translate) {
    const auto& [updater, digest] = fpga::kKernels;
    if (name == updater.name) {
        return KernelCall{updater, registers, translate}.run(nearstep_updater);
    }
    return name == digest.name && KernelCall{digest, registers, translate}.run(nearstep_digest);
}

}  // namespace nearstep::emulator
