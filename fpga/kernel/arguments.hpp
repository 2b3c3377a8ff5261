// The kernels' arguments: one table per kernel. The host, the emulated card, the .xclbin and the
// linker configuration are derived from it. C++14, no exceptions, no containers.
#pragma once

#include "fpga/kernel/updater.hpp"

#include <cstddef>
#include <cstdint>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

enum class ArgumentKind : std::uint8_t { memory_in, memory_out, u64, u32, f32 };

// One argument, in the order of the kernel's parameters.
struct Argument {
    const char* name;
    ArgumentKind kind;
    const char* bundle;  // the AXI port of memory; "control" for scalars
    const char* bank;    // the memory that the port is linked to; "" for scalars
};

// The only memory bank of a SmartSSD.
constexpr const char* kBank = "bank0";
constexpr const char* kControlBundle = "control";

constexpr Argument reads(const char* name, const char* bundle) {
    return {name, ArgumentKind::memory_in, bundle, kBank};
}
constexpr Argument writes(const char* name, const char* bundle) {
    return {name, ArgumentKind::memory_out, bundle, kBank};
}
constexpr Argument scalar(const char* name, ArgumentKind kind) {
    return {name, kind, kControlBundle, ""};
}

// A bundle has at most one reading and one writing process: the two channels of its port.
// NOLINTNEXTLINE(modernize-avoid-c-arrays)
constexpr Argument kUpdaterArguments[] = {
    reads("master_in", "gmem_master"),
    writes("master_out", "gmem_master"),
    reads("moment1_in", "gmem_moment1"),
    writes("moment1_out", "gmem_moment1"),
    reads("moment2_in", "gmem_moment2"),
    writes("moment2_out", "gmem_moment2"),
    reads("scales_in", "gmem_scales"),
    writes("scales_out", "gmem_scales"),
    reads("payload_heads", "gmem_heads"),
    reads("payload_tails", "gmem_tails"),
    reads("groups", "gmem_groups"),
    writes("parameters", "gmem_heads"),
    writes("report", "gmem_tails"),
    scalar("state_offset", ArgumentKind::u64),
    scalar("payload_offset", ArgumentKind::u64),
    scalar("first_tile", ArgumentKind::u64),
    scalar("random_key", ArgumentKind::u64),
    scalar("tiles", ArgumentKind::u32),
    scalar("state_format", ArgumentKind::u32),
    scalar("optimizer", ArgumentKind::u32),
    scalar("codec", ArgumentKind::u32),
    scalar("sources", ArgumentKind::u32),
    scalar("payload_stride", ArgumentKind::u32),
    scalar("kept", ArgumentKind::u32),
    scalar("delivery", ArgumentKind::u32),
    scalar("parameter_dtype", ArgumentKind::u32),
    scalar("gradient_scale", ArgumentKind::f32),
    scalar("beta1", ArgumentKind::f32),
    scalar("one_minus_beta1", ArgumentKind::f32),
    scalar("beta2", ArgumentKind::f32),
    scalar("one_minus_beta2", ArgumentKind::f32),
    scalar("epsilon", ArgumentKind::f32),
    scalar("decay_factor", ArgumentKind::f32),
    scalar("gradient_decay", ArgumentKind::f32),
    scalar("step_size", ArgumentKind::f32),
    scalar("root_scale", ArgumentKind::f32),
    scalar("group_runs", ArgumentKind::u32),
};

// NOLINTNEXTLINE(modernize-avoid-c-arrays)
constexpr Argument kDigestArguments[] = {
    reads("memory", "gmem_memory"),
    writes("digest", "gmem_memory"),
    scalar("offset", ArgumentKind::u64),
    scalar("bytes", ArgumentKind::u64),
};

// A kernel and its arguments.
struct KernelDescription {
    const char* name;
    const Argument* arguments;
    std::size_t count;
};

// NOLINTNEXTLINE(modernize-avoid-c-arrays)
constexpr KernelDescription kKernels[] = {
    {"nearstep_updater", kUpdaterArguments, sizeof kUpdaterArguments / sizeof(Argument)},
    {"nearstep_digest", kDigestArguments, sizeof kDigestArguments / sizeof(Argument)},
};

constexpr bool is_memory(ArgumentKind kind) {
    return kind == ArgumentKind::memory_in || kind == ArgumentKind::memory_out;
}

// Size of the value in the control registers.
constexpr std::size_t size_bytes(ArgumentKind kind) {
    return is_memory(kind) || kind == ArgumentKind::u64 ? 8 : 4;
}

// Control port layout of Vitis HLS (UG1399, "S_AXILITE offset"): values from 0x10 on, each followed
// by a reserved word.
constexpr std::size_t kFirstRegister = 0x10;
constexpr std::size_t kReservedBytes = 4;

// Byte offset of argument `index`. For `index` = count: the end of the registers.
constexpr std::size_t register_offset(const KernelDescription& kernel, std::size_t index) {
    std::size_t offset = kFirstRegister;
    for (std::size_t i = 0; i < index; ++i) {
        offset += size_bytes(kernel.arguments[i].kind) + kReservedBytes;
    }
    return offset;
}

static_assert(register_offset(kKernels[0], kKernels[0].count) <= 0x1000 &&
                  register_offset(kKernels[1], kKernels[1].count) <= 0x1000,
              "the registers of a kernel lie in the 4 KiB of its control port");

// --- The tables are those of the functions -------------------------------------------------------

constexpr bool are_equal(const char* one, const char* other) {
    while (*one != '\0' && *one == *other) {
        ++one;
        ++other;
    }
    return *one == *other;
}

// Position of the argument with this name; the count if there is none.
constexpr std::size_t index_of(const KernelDescription& kernel, const char* name) {
    std::size_t index = 0;
    while (index < kernel.count && !are_equal(kernel.arguments[index].name, name)) {
        ++index;
    }
    return index;
}

template <typename T>
struct KindOf;
template <>
struct KindOf<const Word*> {
    static constexpr ArgumentKind kValue = ArgumentKind::memory_in;
};
template <>
struct KindOf<Word*> {
    static constexpr ArgumentKind kValue = ArgumentKind::memory_out;
};
template <>
struct KindOf<std::uint64_t> {
    static constexpr ArgumentKind kValue = ArgumentKind::u64;
};
template <>
struct KindOf<std::uint32_t> {
    static constexpr ArgumentKind kValue = ArgumentKind::u32;
};
template <>
struct KindOf<float> {
    static constexpr ArgumentKind kValue = ArgumentKind::f32;
};

template <typename... Parameters>
constexpr bool describes(const KernelDescription& kernel, void (*)(Parameters...)) {
    // NOLINTNEXTLINE(modernize-avoid-c-arrays)
    const ArgumentKind kinds[] = {KindOf<Parameters>::kValue...};
    bool is_same = kernel.count == sizeof...(Parameters);
    for (std::size_t i = 0; i < sizeof...(Parameters) && is_same; ++i) {
        is_same = kernel.arguments[i].kind == kinds[i];
    }
    return is_same;
}

static_assert(describes(kKernels[0], nearstep_updater) && describes(kKernels[1], nearstep_digest),
              "each table has the kinds of its kernel's parameters, in their order");

}  // namespace fpga
}  // namespace nearstep
