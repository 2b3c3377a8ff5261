// Threads add gradients that wait in host memory, with the bits of adding one after the other.
#include "offload/host_sums.hpp"

#include "base/random.hpp"
#include "support/test.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <latch>
#include <limits>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>

namespace nearstep::offload {
namespace {

constexpr std::array kFormats = {Dtype::bf16, Dtype::fp16, Dtype::fp32};

// Values in a format, some at the limits of its range.
struct Values {
    Values(Dtype format, std::size_t count, std::uint64_t stream)
        : dtype(format), bytes(count * size_bytes(format)) {
        std::vector<float> values(count);
        for (std::size_t i = 0; i < count; ++i) {
            values[i] = static_cast<float>(random_normal(stream, 0, i)) * (i % 4 == 0 ? 1e3F : 1);
        }
        values[count / 2] = std::numeric_limits<float>::infinity();
        convert_from_fp32(values.data(), dtype, bytes.data(), count);
    }

    shard::GradientPart part() const {
        return {bytes.data(), dtype, bytes.size() / size_bytes(dtype)};
    }

    Dtype dtype;
    std::vector<std::byte> bytes;
};

// The sum of the values, each rounded to `dtype`.
std::vector<std::byte> in_order(std::span<const Values> all, Dtype dtype) {
    const std::size_t count = all.front().part().elems;
    std::vector<float> sum(count);
    std::vector<float> next(count);
    std::vector<std::byte> rounded(count * size_bytes(dtype));
    for (const Values& one : all) {
        convert_to_fp32(one.dtype, one.bytes.data(), next.data(), count);
        std::ranges::transform(sum, next, sum.begin(), std::plus<>());
        if (&one != all.data()) {
            convert_from_fp32(sum.data(), dtype, rounded.data(), count);
            convert_to_fp32(dtype, rounded.data(), sum.data(), count);
        }
    }
    return rounded;
}

TEST(AddOnHost, AddsAnyNumberOfValuesAlsoInPlace) {
    for (const std::size_t count : {1UL, 7UL, 1023UL, 1024UL, 1025UL, 4099UL}) {
        for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
            for (const Dtype first : kFormats) {
                if (size_bytes(first) > size_bytes(dtype)) {
                    continue;
                }
                std::vector<Values> all = {{first, count, 0}};
                std::vector<shard::GradientPart> parts(1);
                for (const Dtype format : kFormats) {
                    all.emplace_back(format, count, all.size());
                }
                for (std::size_t i = 1; i < all.size(); ++i) {
                    parts.push_back(all[i].part());
                }
                // The first values are at the end of the memory of the sums.
                std::vector<std::byte> sums(count * size_bytes(dtype) + 1, std::byte{7});
                std::byte* const place =
                    sums.data() + count * (size_bytes(dtype) - size_bytes(first));
                std::ranges::copy(all.front().bytes, place);
                parts.front() = {place, first, count};
                add_on_host(parts, dtype, sums.data());
                EXPECT_EQ(sums.back(), std::byte{7}) << "behind the sums";
                sums.pop_back();
                EXPECT_EQ(sums, in_order(all, dtype)) << count;
            }
        }
    }
    EXPECT_THROW(add_on_host({}, Dtype::fp32, nullptr), ContractError);
}

TEST(GradientRoom, IsWholeAgainInWhicheverOrderGradientsLeave) {
    std::vector<std::byte> memory(64 * 512UL);
    GradientRoom room(memory);
    std::mt19937 draw(1);
    std::vector<std::pair<std::span<std::byte>, std::byte>> held;
    const auto leave = [&](std::size_t i) {
        const auto [mine, value] = held[i];
        EXPECT_EQ(std::ranges::count(mine, value), std::ssize(mine)) << "nobody else has it";
        room.give_back(mine.data());
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
    };
    for (int turn = 0; turn < 2000; ++turn) {
        constexpr std::array<std::size_t, 4> kSizes = {0, 1, 300, 5000};
        const std::size_t bytes = kSizes[draw() % kSizes.size()];
        std::byte* const found = draw() % 5 < 3 ? room.take(bytes) : nullptr;
        if (found != nullptr) {
            held.emplace_back(std::span(found, bytes), static_cast<std::byte>(turn));
            std::ranges::fill(held.back().first, held.back().second);
        } else if (!held.empty()) {
            leave(draw() % held.size());
        }
    }
    EXPECT_EQ(room.take(memory.size()), nullptr);
    while (!held.empty()) {
        leave(held.size() - 1);
    }
    EXPECT_EQ(room.take(memory.size()), memory.data());
}

// A place with its first gradient, and gradients that come on top of it.
class HostSumsTest : public testing::Test {
protected:
    static constexpr std::size_t kElems = 1025;

    HostSumsTest() {
        sums.give_room(room);
        std::ranges::copy(all.front().bytes, memory.end() - std::ssize(all.front().bytes));
        sums.set(place, all.front().dtype, [] { return true; });
    }

    ~HostSumsTest() override { goes_on(); }

    // Adds gradient number `i`.
    void add(std::size_t i, bool now = true) {
        std::byte* const waits = sums.room_for(all[i].bytes.size());
        ASSERT_NE(waits, nullptr);
        std::ranges::copy(all[i].bytes, waits);
        sums.add(
            place, waits, all[i].dtype,
            [this] {
                ++begun;
                may_go_on.wait();
                if (fails) {
                    throw std::runtime_error("of a thread");
                }
            },
            now);
    }

    void goes_on() {
        if (!std::exchange(is_going_on, true)) {
            going_on.set_value();
        }
    }

    void wait_until(const std::function<bool()>& is_so) {
        while (!is_so()) {
            std::this_thread::yield();
        }
    }

    // Whether the sum is that of the first `count` gradients.
    void expect_sum_of(std::size_t count) {
        EXPECT_EQ(sums.claim(place), 0U);
        EXPECT_EQ(memory, in_order(std::span(all).first(count), Dtype::fp32));
    }

    std::vector<Values> all = {{Dtype::bf16, kElems, 0},
                               {Dtype::fp16, kElems, 1},
                               {Dtype::fp32, kElems, 2},
                               {Dtype::bf16, kElems, 3}};
    std::vector<std::byte> memory = std::vector<std::byte>(kElems * sizeof(float));
    std::vector<std::byte> room = std::vector<std::byte>(32 * 512UL);
    std::promise<void> going_on;
    std::shared_future<void> may_go_on = going_on.get_future().share();
    bool is_going_on = false;
    std::atomic<bool> fails = false;
    std::atomic<int> begun = 0;
    HostSums sums{1};
    std::size_t place = sums.add_place(memory.data(), Dtype::fp32, kElems);
};

TEST_F(HostSumsTest, AThreadThatIsLateAddsAllThatCameMeanwhile) {
    add(1);
    wait_until([&] { return begun == 1; });
    add(2);
    add(3);
    goes_on();
    expect_sum_of(4);
}

TEST_F(HostSumsTest, AGradientWaitsForTheNextOne) {
    goes_on();
    add(1, false);
    EXPECT_EQ(sums.claim(place), 1U);
    EXPECT_EQ(begun, 0);
    add(2);
    wait_until([&] { return begun == 2; });
    expect_sum_of(3);
}

TEST_F(HostSumsTest, WhatNoThreadHasBegunIsTakenBackAndItsRoomIsFreeWhenItWasRead) {
    constexpr std::size_t kTaken = 512;  // of the room, by the one thread's work
    const std::size_t other = sums.add_place(nullptr, Dtype::fp32, 0);
    sums.add(
        other, sums.room_for(0), Dtype::fp32, [this] { may_go_on.wait(); }, true);
    add(1);
    add(2);
    EXPECT_EQ(sums.claim(place), 2U);
    bool is_read = false;
    sums.set(place, Dtype::bf16, [&] { return is_read; });
    EXPECT_EQ(sums.claim(place), 0U);
    EXPECT_EQ(sums.room_for(room.size() - kTaken), nullptr);
    is_read = true;
    EXPECT_EQ(sums.room_for(room.size() - kTaken), room.data() + kTaken);
    goes_on();
    static_cast<void>(sums.claim(other));
    EXPECT_EQ(begun, 0);
}

TEST_F(HostSumsTest, AnErrorOfAThreadReachesWhoComesNext) {
    add(1);
    wait_until([&] { return begun == 1; });
    fails = true;
    goes_on();
    EXPECT_THROW(sums.claim(place), std::runtime_error);
    EXPECT_THROW(sums.room_for(1), std::runtime_error);
    EXPECT_THROW(sums.add(
                     place, room.data(), Dtype::bf16, [] {}, true),
                 std::runtime_error);
}

TEST_F(HostSumsTest, CloseWaitsForWhatWasBegunAndDropsTheRest) {
    add(1);
    wait_until([&] { return begun == 1; });
    add(2);
    std::future<void> closed = std::async(std::launch::async, [&] { sums.close(); });
    goes_on();
    closed.get();
    EXPECT_EQ(memory,
              in_order(std::span(all).first(1 + static_cast<std::size_t>(begun)), Dtype::fp32));
}

}  // namespace
}  // namespace nearstep::offload
