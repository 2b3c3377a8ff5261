// Calls a kernel's C++ function with what lies in a compute unit's registers. The table of its
// arguments says where each is.
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

// Reads the argument at its registers. `is_valid` becomes false if it is not there, or points to
// no memory that the unit reaches.
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
        // Where the kernel ends within the buffer is not in the registers: one beat is checked.
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

// 0: it ran. `description`: the kernel's table.
template <typename... Parameters>
int call_kernel(void (*kernel)(Parameters...), const fpga::KernelDescription& description,
                const KernelCall& call) {
    return call_kernel(kernel, description, call, std::index_sequence_for<Parameters...>());
}

}  // namespace nearstep::emulator
