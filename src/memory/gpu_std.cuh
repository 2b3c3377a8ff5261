// The part of the C++ library that the GPU's code uses. NVRTC lacks it, and reads this in place of
// <cmath>, <cstddef>, <cstdint>, <cstring> and <type_traits>.
#pragma once

#ifndef INFINITY
#define INFINITY __int_as_float(0x7F800000)
#endif

namespace std {

using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned;
using uint64_t = unsigned long;
using size_t = unsigned long;
using uintptr_t = unsigned long;

enum class byte : unsigned char {};

using ::memcpy;
__device__ inline float sqrt(float value) { return ::sqrtf(value); }

template <bool kFirst, typename First, typename Second>
struct conditional {
    using type = First;
};
template <typename First, typename Second>
struct conditional<false, First, Second> {
    using type = Second;
};
template <bool kFirst, typename First, typename Second>
using conditional_t = typename conditional<kFirst, First, Second>::type;

}  // namespace std
