#include "memory/gpu.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace nearstep::memory {
namespace {

TEST(Gpus, AreNoneOrUsable) {
    if (gpus() == 0) {
        EXPECT_THROW(use_gpu(0), CudaError);
        EXPECT_THROW(room_of_gpu(), CudaError);
        EXPECT_THROW(GpuBuffer(1), CudaError);
        EXPECT_THROW(Stream(), CudaError);
        return;
    }
    EXPECT_FALSE(name_of_gpu(0).empty());
    EXPECT_NO_THROW(use_gpu(0));
    EXPECT_THROW(use_gpu(gpus()), CudaError);
}

class Gpu : public testing::Test {
protected:
    void SetUp() override {
        if (gpus() == 0) {
            GTEST_SKIP() << "there is no GPU here";
        }
        use_gpu(0);
    }
};

TEST_F(Gpu, HasLessRoomForWhatItHolds) {
    const GpuRoom before = room_of_gpu();
    EXPECT_LE(before.free_bytes, before.total_bytes);
    const GpuBuffer buffer(std::size_t{64} << 20);
    EXPECT_LT(room_of_gpu().free_bytes, before.free_bytes);
    EXPECT_EQ(room_of_gpu().total_bytes, before.total_bytes);
}

TEST_F(Gpu, CopiesThereAndBackInTheStreamsOrder) {
    constexpr std::size_t kBytes = 1 << 20;
    PinnedBuffer out(kBytes);
    PinnedBuffer in(kBytes);
    for (std::size_t i = 0; i < kBytes; ++i) {
        out.span()[i] = static_cast<std::byte>(i * 7);
    }
    GpuBuffer first(kBytes);
    GpuBuffer second(kBytes);
    const Stream stream;
    const Stream other(StreamPriority::high);
    Event copied;
    fill_with_zeros(second.span(), stream);
    copy_to_gpu(first.span(), out.span(), stream);
    copy_on_gpu(second.span(), first.span(), stream);
    copied.record(stream);
    other.wait_for(copied);
    copy_to_host(in.span(), second.span(), other);
    Event home;
    home.record(other);
    home.wait();
    EXPECT_TRUE(home.is_over());
    EXPECT_GE(home.seconds_since(copied), 0);
    EXPECT_TRUE(std::equal(in.span().begin(), in.span().end(), out.span().begin()));
}

TEST_F(Gpu, CopiesFromMemoryThatIsPinnedForAWhileInTheDefaultStream) {
    std::vector<std::byte> out(100001, std::byte{7});
    std::vector<std::byte> in(out.size());
    GpuBuffer there(out.size());
    {
        const PinnedRange range(out);
        EXPECT_TRUE(range.is_pinned());
        copy_to_gpu(there.span(), out, Stream::of_default());
        copy_to_host(in, there.span(), Stream::of_default());
        wait_for_gpu();
    }
    EXPECT_EQ(in, out);
    EXPECT_TRUE(PinnedRange(out).is_pinned());
    EXPECT_FALSE(PinnedRange().is_pinned());
}

TEST_F(Gpu, AddsInTheStreamsOrder) {
    const std::vector<float> sums = {1, 2, 3, 0.1F};
    const std::vector<float> addends = {10, 20, 30, 0.2F};
    GpuBuffer on_gpu(sums.size() * sizeof(float));
    GpuBuffer added(on_gpu.size());
    const Stream stream;
    copy_to_gpu(on_gpu.span(), std::as_bytes(std::span(sums)), stream);
    copy_to_gpu(added.span(), std::as_bytes(std::span(addends)), stream);
    add_on_gpu({on_gpu.as<float>(), 4}, {added.as<float>(), 4}, stream);
    add_on_gpu({}, {}, stream);
    std::vector<float> found(4);
    copy_to_host(std::as_writable_bytes(std::span(found)), on_gpu.span(), stream);
    stream.wait();
    EXPECT_EQ(found, (std::vector<float>{11, 22, 33, 0.1F + 0.2F}));
}

TEST_F(Gpu, SaysHowMuchItDoesNotHave) {
    try {
        const GpuBuffer buffer(std::size_t{1} << 46U);
        FAIL() << "no GPU has 70 TB";
    } catch (const CudaError& error) {
        EXPECT_NE(std::string(error.what()).find("70 TB"), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace nearstep::memory
