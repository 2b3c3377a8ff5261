// Calls a kernel's C++ function with arguments from a compute unit's registers. The kernel's
// argument table gives their offsets.
#pragma once

#include "fpga/emulator/kernel_model.hpp"
#include "fpga/kernel/arguments.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

namespace nearstep::emulator {

// Reads one argument from its registers. Sets `is_valid` to false if it lies outside the registers
// or points to memory that the unit cannot reach.
template <typename T>
T read_argument(const KernelCall& call, std::size_t offset, bool& is_valid) {
    using Stored = std::conditional_t<std::is_pointer_v<T>, std::uint64_t, T>;
    Stored stored{};
    if ((offset + sizeof stored) > call.words * sizeof(std::uint32_t)) {
        is_valid = false;
        return T{};
    }
    std::memcpy(&stored, reinterpret_cast<const std::byte*>(call.registers) + offset,
                sizeof stored);
    if constexpr (std::is_pointer_v<T>) {
        // The registers do not say how much of the buffer the kernel uses, so only one beat is
        // checked.
        void* memory = call.translate(call.context, stored, fpga::kWordBytes);
        is_valid = is_valid && memory != nullptr && stored % fpga::kWordBytes == 0;
        return static_cast<T>(memory);
    } else {
        return stored;
    }
}

template <typename... Parameters, std::size_t... kIndices>
int call_kernel(void (*kernel)(Parameters...), const fpga::KernelDescription& description,
                const KernelCall& call, std::index_sequence<kIndices...>) {
    bool is_valid = true;
    const std::tuple<Parameters...> arguments{
        read_argument<Parameters>(call, fpga::register_offset(description, kIndices), is_valid)...};
    if (!is_valid) {
        return 1;
    }
    std::apply(kernel, arguments);
    return 0;
}

// Returns 0 if the kernel ran, 1 if an argument was invalid. `description` is the kernel's table.
template <typename... Parameters>
int call_kernel(void (*kernel)(Parameters...), const fpga::KernelDescription& description,
                const KernelCall& call) {
    return call_kernel(kernel, description, call, std::index_sequence_for<Parameters...>());
}

}  // namespace nearstep::emulator
