#include "codec/gpu_sum.hpp"

#include "base/random.hpp"
#include "codec/kernels.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace nearstep::codec {
namespace {

constexpr std::size_t kElems = 8 * 12345;

// Includes values that round or cancel, zeros of both signs and infinities.
std::vector<std::byte> addend(std::size_t number, Dtype dtype) {
    std::vector<float> wide(kElems);
    for (std::size_t i = 0; i < kElems; ++i) {
        wide[i] = static_cast<float>(random_normal(number, 9, i)) *
                  std::ldexp(1.0F, static_cast<int>(i % 13));
    }
    wide[3] = -0.0F;
    wide[4] = number % 2 == 0 ? 1.0F : -1.0F;
    wide[5] = number == 1 ? std::numeric_limits<float>::infinity() : 2.0F;
    std::vector<std::byte> out(kElems * size_bytes(dtype));
    best_kernels().narrow(wide.data(), dtype, out.data(), kElems);
    return out;
}

TEST(GpuSum, HasTheBitsOfTheHosts) {
    if (memory::gpus() == 0) {
        GTEST_SKIP() << "there is no GPU here";
    }
    memory::use_gpu(0);
    const memory::Stream stream;
    const Kernels& host = best_kernels();
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
        for (const std::size_t count : {1U, 2U, 3U, 8U}) {
            std::vector<memory::GpuBuffer> buffers;
            std::vector<const std::byte*> addresses;
            std::vector<float> wanted(kElems);
            for (std::size_t number = 0; number < count; ++number) {
                const std::vector<std::byte> values = addend(number, dtype);
                memory::GpuBuffer& there = buffers.emplace_back(values.size());
                copy_to_gpu(there.span(), values, stream);
                stream.wait();
                addresses.push_back(there.span().data());
                if (number == 0) {
                    host.widen(dtype, values.data(), wanted.data(), kElems);
                } else {
                    host.add_widened(dtype, values.data(), wanted.data(), kElems);
                }
            }
            memory::GpuBuffer sums(kElems * sizeof(float));
            add_dense(addresses, dtype, kElems, sums.as<float>(), stream);
            std::vector<float> found(kElems);
            copy_to_host(std::as_writable_bytes(std::span(found)), sums.span(), stream);
            stream.wait();
            EXPECT_EQ(std::memcmp(found.data(), wanted.data(), kElems * sizeof(float)), 0)
                << name_of(dtype) << ", " << count << " addends";
        }
    }
}

}  // namespace
}  // namespace nearstep::codec
