// Tests memory, streams and events of a GPU; most tests are skipped without one.
#include "memory/gpu.hpp"

#include "support/test.hpp"

namespace nearstep::memory {
namespace {

TEST(Gpus, TellAPartFromAWholeOne) {
    EXPECT_TRUE(is_part_of_gpu("NVIDIA A100-SXM4-40GB MIG 1g.5gb"));
    EXPECT_FALSE(is_part_of_gpu("NVIDIA A100-SXM4-40GB"));
}

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

// Values that every format holds, in GPU memory.
class OnGpu {
public:
    OnGpu(Dtype dtype, std::size_t count, const Stream& stream)
        : dtype_(dtype), bytes_(count * size_bytes(dtype)), values_(count), memory_(bytes_.size()) {
        for (std::size_t i = 0; i < count; ++i) {
            values_[i] = static_cast<float>(i % 251) - 100;
        }
        convert_from_fp32(values_.data(), dtype, bytes_.data(), count);
        copy_to_gpu(memory_.span(), bytes_, stream);
    }

    Dtype dtype() const { return dtype_; }
    const void* from(std::size_t first) {
        return memory_.span().data() + first * size_bytes(dtype_);
    }
    float at(std::size_t i) const { return values_[i]; }

private:
    Dtype dtype_;
    std::vector<std::byte> bytes_;
    std::vector<float> values_;
    GpuBuffer memory_;
};

constexpr std::size_t kMostElems = 4099;

// In whole octets and between them.
TEST_F(Gpu, AddsAndConvertsEveryFormatAtEveryPlace) {
    const Stream stream;
    GpuBuffer sums(kMostElems * sizeof(float));
    std::vector<float> found(kMostElems);
    for (const Dtype one_dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
        OnGpu one(one_dtype, kMostElems, stream);
        for (const Dtype other_dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
            OnGpu other(other_dtype, kMostElems, stream);
            for (const std::size_t first : {0, 1, 8}) {
                const std::size_t count = kMostElems - first;
                add_on_gpu({sums.as<float>(), count}, one.from(first), one_dtype, other.from(first),
                           other_dtype, stream);
                copy_to_host(std::as_writable_bytes(std::span(found)), sums.span(), stream);
                stream.wait();
                for (std::size_t i = 0; i < count; ++i) {
                    ASSERT_EQ(found[i], one.at(first + i) + other.at(first + i)) << i;
                }
                convert_on_gpu({sums.as<float>() + first, count}, one.from(first), one_dtype, 0.5F,
                               stream);
                copy_to_host(std::as_writable_bytes(std::span(found)), sums.span(), stream);
                stream.wait();
                for (std::size_t i = first; i < kMostElems; ++i) {
                    ASSERT_EQ(found[i], 0.5F * one.at(i)) << i;
                }
            }
        }
    }
    add_on_gpu({}, nullptr, Dtype::fp32, nullptr, Dtype::bf16, stream);
}

TEST_F(Gpu, AddsInPlaceInTheStreamsOrder) {
    const Stream stream;
    GpuBuffer sums(kMostElems * sizeof(float));
    OnGpu addends(Dtype::bf16, kMostElems, stream);
    fill_with_zeros(sums.span(), stream);
    for (int time = 0; time < 3; ++time) {
        add_on_gpu({sums.as<float>(), kMostElems}, sums.as<float>(), Dtype::fp32, addends.from(0),
                   Dtype::bf16, stream);
    }
    std::vector<float> found(kMostElems);
    copy_to_host(std::as_writable_bytes(std::span(found)), sums.span(), stream);
    stream.wait();
    for (std::size_t i = 0; i < kMostElems; ++i) {
        ASSERT_EQ(found[i], 3 * addends.at(i)) << i;
    }
}

TEST_F(Gpu, DigestsDifferIfAnyWordDiffersOrMoves) {
    constexpr std::size_t kWords = 40007;
    const Stream stream;
    std::vector<std::uint16_t> words(kWords);
    for (std::size_t i = 0; i < kWords; ++i) {
        words[i] = static_cast<std::uint16_t>(i * 2654435761U >> 7U);
    }
    GpuBuffer there((kWords + 1) * sizeof(std::uint16_t));
    GpuBuffer digest(sizeof(std::uint64_t));
    const auto digested = [&](std::size_t shift) {
        auto* const first = there.as<std::uint16_t>() + shift;
        copy_to_gpu({reinterpret_cast<std::byte*>(first), kWords * sizeof(std::uint16_t)},
                    std::as_bytes(std::span(words)), stream);
        digest_on_gpu(first, kWords * sizeof(std::uint16_t), digest.as<std::uint64_t>(), stream);
        std::uint64_t found = 0;
        copy_to_host({reinterpret_cast<std::byte*>(&found), sizeof found}, digest.span(), stream);
        stream.wait();
        return found;
    };
    for (const std::size_t shift : {0U, 1U}) {  // aligned, and not
        const std::uint64_t whole = digested(shift);
        EXPECT_EQ(digested(shift), whole);
        for (const std::size_t at : {std::size_t{0}, std::size_t{5}, kWords / 2, kWords - 1}) {
            words[at] ^= 1U;
            EXPECT_NE(digested(shift), whole) << at;
            words[at] ^= 1U;
            std::swap(words[at], words[(at + 8) % kWords]);
            EXPECT_NE(digested(shift), whole) << at << " moved";
            std::swap(words[at], words[(at + 8) % kWords]);
        }
        EXPECT_EQ(digested(shift), whole);
    }
}

TEST_F(Gpu, SaysHowMuchItDoesNotHave) {
    EXPECT_THAT(message_of<CudaError>([] { const GpuBuffer buffer(std::size_t{1} << 46U); }),
                testing::HasSubstr("70 TB"));
}

}  // namespace
}  // namespace nearstep::memory
