// Compares collectives between GPUs with the same on the host; skipped with fewer GPUs than ranks.
#include "mpi/nccl/group.hpp"

#include "base/dtype.hpp"
#include "support/test.hpp"

namespace nearstep::nccl {
namespace {

constexpr std::chrono::seconds kLimit{30};

// Element i of a rank's input: magnitudes vary, so that sums round.
float value_of(int rank, std::size_t i) {
    return static_cast<float>(random_normal(static_cast<std::uint64_t>(rank), 5, i)) *
           (i % 7 == 0 ? 1e-3F : 1.0F);
}

std::vector<std::byte> values(int rank, std::size_t count, Dtype dtype) {
    std::vector<float> wide(count);
    for (std::size_t i = 0; i < count; ++i) {
        wide[i] = value_of(rank, i);
    }
    std::vector<std::byte> out(count * size_bytes(dtype));
    convert_from_fp32(wide.data(), dtype, out.data(), count);
    return out;
}

std::vector<float> widened(std::span<const std::byte> bytes, Dtype dtype) {
    std::vector<float> out(bytes.size() / size_bytes(dtype));
    convert_to_fp32(dtype, bytes.data(), out.data(), out.size());
    return out;
}

TEST(Obstacle, IsTheSameOnAllRanksAndNamed) {
    const auto world = mpi::Communicator::world(kLimit);
    const std::optional<std::string> obstacle = find_obstacle(world, std::nullopt);
    ASSERT_TRUE(obstacle.has_value());
    EXPECT_EQ(*obstacle, library_version().empty()
                             ? "this program was built without NCCL"
                             : text("rank 0 of ", world.size(), " has no GPU"));
    EXPECT_EQ(world.broadcast(*obstacle, 0), *obstacle);
}

TEST(Obstacle, IsASharedGpu) {
    const auto world = mpi::Communicator::world(kLimit);
    if (library_version().empty() || memory::gpus() == 0) {
        GTEST_SKIP() << "there is no GPU here, or no NCCL";
    }
    const std::optional<std::string> obstacle = find_obstacle(world, 0);
    if (world.size() == 1) {
        EXPECT_FALSE(obstacle.has_value());
    } else {
        EXPECT_EQ(obstacle, text("ranks 0 and 1 of ", world.size(), " share a GPU"));
    }
}

TEST(WithoutNccl, AGroupSaysWhatToDo) {
    if (!library_version().empty()) {
        GTEST_SKIP() << "this program has NCCL";
    }
    const auto world = mpi::Communicator::world(kLimit);
    Watchdog watchdog;
    EXPECT_THAT(message_of<NcclError>([&] { const Group group(world, 0, watchdog, kLimit); }),
                testing::HasSubstr("exchange.transport"));
}

class Gpus : public testing::Test {
protected:
    Gpus() : world_(mpi::Communicator::world(kLimit)) {}

    void SetUp() override {
        if (library_version().empty()) {
            GTEST_SKIP() << "this program was built without NCCL";
        }
        if (memory::gpus() < world_.size()) {
            GTEST_SKIP() << "there are " << memory::gpus() << " GPUs here for " << world_.size()
                         << " ranks";
        }
        ASSERT_EQ(find_obstacle(world_, world_.rank()), std::nullopt);
        watchdog_.emplace();
        group_.emplace(world_, world_.rank(), *watchdog_, kLimit);
        stream_.emplace(memory::StreamPriority::high);
    }

    void TearDown() override { group_.reset(); }

    memory::GpuBuffer on_gpu(std::span<const std::byte> bytes) const {
        memory::GpuBuffer buffer(bytes.size());
        copy_to_gpu(buffer.span(), bytes, *stream_);
        stream_->wait();
        return buffer;
    }

    std::vector<std::byte> on_host(const memory::GpuBuffer& buffer) {
        memory::Event done;
        done.record(*stream_);
        group_->wait_for(done);
        std::vector<std::byte> bytes(buffer.size());
        copy_to_host(bytes, buffer.span(), *stream_);
        stream_->wait();
        return bytes;
    }

    void check_reduce_scatter(std::size_t count, Dtype dtype) {
        const auto ranks = static_cast<std::size_t>(world_.size());
        const auto me = static_cast<std::size_t>(world_.rank());
        const memory::GpuBuffer parts = on_gpu(values(world_.rank(), ranks * count, dtype));
        memory::GpuBuffer mine(count * size_bytes(dtype));
        group_->reduce_scatter(parts.span(), mine.span(), dtype, *stream_);
        const std::vector<float> found = widened(on_host(mine), dtype);
        std::vector<double> wanted(count, 0.0);
        std::vector<double> magnitude(count, 0.0);
        for (int rank = 0; rank < world_.size(); ++rank) {
            const auto all = widened(values(rank, ranks * count, dtype), dtype);
            for (std::size_t i = 0; i < count; ++i) {
                wanted[i] += all[me * count + i];
                magnitude[i] += std::abs(all[me * count + i]);
            }
        }
        // Each of the ranks - 1 additions rounds by at most half a unit in the last of 24 or 8 bits
        // of the sum of magnitudes.
        const double step = dtype == Dtype::fp32 ? 0x1p-24 : 0x1p-8;
        for (std::size_t i = 0; i < count; ++i) {
            if (ranks <= 2) {  // one addition: rounded once, in any order
                const auto sum = static_cast<float>(wanted[i]);
                float rounded = sum;
                if (dtype == Dtype::bf16) {
                    rounded = from_bf16(to_bf16(sum));
                }
                ASSERT_EQ(found[i], rounded) << "element " << i;
            } else {
                ASSERT_NEAR(found[i], wanted[i],
                            step * static_cast<double>(ranks - 1) * magnitude[i] * 1.01)
                    << "element " << i;
            }
        }
        // Repeating gives the same bits.
        group_->reduce_scatter(parts.span(), mine.span(), dtype, *stream_);
        EXPECT_EQ(widened(on_host(mine), dtype), found);
    }

    mpi::Communicator world_;
    std::optional<Watchdog> watchdog_;
    std::optional<Group> group_;
    std::optional<memory::Stream> stream_;
};

TEST_F(Gpus, ReduceAndScatterSums) {
    for (const std::size_t count : {1U, 7U, 65536U, 1000003U}) {
        check_reduce_scatter(count, Dtype::fp32);
        check_reduce_scatter(count, Dtype::bf16);
    }
}

TEST_F(Gpus, GatherInRankOrder) {
    constexpr std::size_t kBytes = 100001;
    const std::vector<std::byte> mine(kBytes, static_cast<std::byte>(world_.rank() + 1));
    const memory::GpuBuffer part = on_gpu(mine);
    memory::GpuBuffer all(kBytes * static_cast<std::size_t>(world_.size()));
    group_->all_gather(part.span(), all.span(), *stream_);
    const std::vector<std::byte> found = on_host(all);
    for (std::size_t i = 0; i < found.size(); ++i) {
        ASSERT_EQ(found[i], static_cast<std::byte>(i / kBytes + 1)) << "byte " << i;
    }
}

// Rank r sends 1000 r + s bytes of value 16 r + s to rank s; nothing to rank 0.
TEST_F(Gpus, ExchangeMessagesOfDifferentSizes) {
    const int me = world_.rank();
    const auto size_between = [](int from, int to) {
        return to == 0 || from == to ? std::size_t{0} : static_cast<std::size_t>(1000 * from + to);
    };
    std::vector<memory::GpuBuffer> out;
    std::vector<memory::GpuBuffer> in;
    std::vector<std::span<const std::byte>> to;
    std::vector<std::span<std::byte>> from;
    for (int other = 0; other < world_.size(); ++other) {
        out.push_back(on_gpu(std::vector<std::byte>(size_between(me, other),
                                                    static_cast<std::byte>(16 * me + other))));
        in.emplace_back(size_between(other, me));
        to.emplace_back(std::as_const(out.back()).span());
        from.emplace_back(in.back().span());
    }
    for (int times = 0; times < 40; ++times) {  // more than can be pending at once
        group_->exchange(to, from, *stream_);
    }
    for (int other = 0; other < world_.size(); ++other) {
        const auto& buffer = in[static_cast<std::size_t>(other)];
        for (const std::byte byte : on_host(buffer)) {
            ASSERT_EQ(byte, static_cast<std::byte>(16 * other + me));
        }
    }
}

TEST_F(Gpus, WorkInTheOrderOfEventsOfOtherStreams) {
    constexpr std::size_t kBytes = 1 << 20;
    const std::vector<std::byte> mine(kBytes, static_cast<std::byte>(world_.rank() + 1));
    memory::GpuBuffer part(kBytes);
    memory::GpuBuffer all(kBytes * static_cast<std::size_t>(world_.size()));
    memory::Event ready;
    const memory::Stream compute = memory::Stream::of_default();
    copy_to_gpu(part.span(), mine, compute);
    ready.record(compute);
    stream_->wait_for(ready);
    group_->all_gather(part.span(), all.span(), *stream_);
    EXPECT_EQ(on_host(all).back(), static_cast<std::byte>(world_.size()));
}

TEST_F(Gpus, HaveSeveralGroupsThatOneWatchdogWatches) {
    const mpi::Communicator half = world_.split(world_.rank() % 2);
    Group second(half, world_.rank(), *watchdog_, kLimit);
    const std::vector<std::byte> values_of_first = values(world_.rank() % 2, 11, Dtype::fp32);
    const memory::GpuBuffer mine = on_gpu(values(world_.rank(), 11, Dtype::fp32));
    memory::GpuBuffer all(mine.size() * static_cast<std::size_t>(half.size()));
    second.all_gather(mine.span(), all.span(), *stream_);
    std::vector<std::byte> found = on_host(all);
    found.resize(values_of_first.size());
    EXPECT_EQ(found, values_of_first);
}

}  // namespace
}  // namespace nearstep::nccl
