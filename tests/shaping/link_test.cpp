// Tests that a shaped link moves bytes at its rate.
#include "shaping/link.hpp"

#include "shaping/fake_clock.hpp"
#include "shaping/node_links.hpp"
#include "support/test.hpp"

namespace nearstep::shaping {
namespace {

constexpr double kGigabyte = 1e9;  // per second: a byte per nanosecond

struct TestLink {
    explicit TestLink(double rate) : link(rate, free_at) {}

    std::atomic<Time> free_at{0};
    Link link;
};

TEST(ALink, MovesBytesAtItsRate) {
    TestLink one(2 * kGigabyte);
    EXPECT_EQ(one.link.take(1000, 4000), 3000);
}

TEST(ALink, IsNeverFasterThanItsRateHoweverItIsDivided) {
    TestLink one(3 * kGigabyte);  // bytes take a fraction of a nanosecond
    Time over = 0;
    for (int i = 0; i < 1000; ++i) {
        over = one.link.take(0, 7);
    }
    EXPECT_GE(over, 7000 / 3);
    EXPECT_LE(over, 7000 / 3 + 1000);  // each rounded up to a nanosecond
}

TEST(ALink, ServesTransfersOneBehindTheOther) {
    TestLink one(kGigabyte);
    EXPECT_EQ(one.link.take(0, 500), 500);
    EXPECT_EQ(one.link.take(0, 500), 1000);
    EXPECT_EQ(one.link.take(600, 100), 1100);
}

TEST(ALink, DoesNotSaveUpTheTimeInWhichNobodyWantedIt) {
    TestLink one(kGigabyte);
    one.link.take(0, 100);
    EXPECT_EQ(one.link.take(5000, 100), 5100);
}

TEST(ALink, DoesNotIdleBecauseAThreadAskedLate) {
    TestLink one(kGigabyte);
    one.link.take(0, 100);
    // Ready at 100, whenever it is requested: the bytes follow the earlier ones.
    EXPECT_EQ(one.link.take(100, 100), 200);
}

TEST(ALink, GivesManyThreadsNoMoreThanItsRate) {
    TestLink one(kGigabyte);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&one] {
            for (int i = 0; i < 10000; ++i) {
                one.link.take(0, 10);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(one.free_at, 4 * 10000 * 10);
}

TEST(ACrossing, TakesAsLongAsTheSlowestLinkOfItsPath) {
    TestLink fast(12 * kGigabyte);
    TestLink slow(3 * kGigabyte);
    const FakeClock clock;
    const Time start = clock.now();
    const Path path = {&slow.link, &fast.link};
    const std::size_t bytes = 10 * kChunkBytes;
    const Time over = cross(path, start, bytes, clock);
    const double seconds = static_cast<double>(over - start) / 1e9;
    EXPECT_GE(seconds, static_cast<double>(bytes) / 3e9);
    EXPECT_LE(seconds, static_cast<double>(bytes) / 3e9 * 1.001);
    EXPECT_EQ(clock.now(), over);
}

TEST(ACrossing, OverNoLinkIsOverAtOnce) {
    const FakeClock clock;
    const Time start = clock.now();
    EXPECT_EQ(cross({}, start, 1 << 30, clock), start);
    EXPECT_EQ(clock.now(), start);
}

TEST(ACrossing, OfNoBytesIsOverAtOnce) {
    TestLink one(kGigabyte);
    const FakeClock clock;
    EXPECT_EQ(cross({&one.link}, clock.now(), 0, clock), clock.now());
}

TEST(ACrossing, SharesALinkFairlyWithALongerOne) {
    TestLink shared(kGigabyte);
    const Path path = {&shared.link};
    const Time start = 1000;
    Crossing shorter(path, start, 2 * kChunkBytes);
    Crossing longer(path, start, 100 * kChunkBytes);
    Time now = start;
    bool is_over = false;
    while (!is_over) {
        now = std::min(shorter.due(), longer.due());
        is_over = shorter.is_over(now);
        static_cast<void>(longer.is_over(now));
    }
    // Chunks alternate: the shorter transfer ends after about four chunks, not after 102.
    EXPECT_LE(now - start, static_cast<Time>(5 * kChunkBytes));
}

TEST(ACrossing, OfManyAtOnceUsesTheSharedLinkWhole) {
    TestLink shared(4 * kGigabyte);
    std::vector<std::unique_ptr<TestLink>> own;
    std::vector<Path> paths;
    for (int i = 0; i < 8; ++i) {
        own.push_back(std::make_unique<TestLink>(kGigabyte));
        paths.push_back({&own.back()->link, &shared.link});
    }
    const Time start = 1000;
    std::vector<Crossing> crossings;
    for (const Path& path : paths) {
        crossings.emplace_back(path, start, 20 * kChunkBytes);
    }
    Time now = start;
    bool all_over = false;
    while (!all_over) {
        Time next = std::numeric_limits<Time>::max();
        all_over = true;
        for (Crossing& crossing : crossings) {
            if (!crossing.is_over(now)) {
                all_over = false;
                next = std::min(next, crossing.due());
            }
        }
        now = all_over ? now : next;
    }
    const double seconds = static_cast<double>(now - start) / 1e9;
    const double ideal = 8 * 20 * static_cast<double>(kChunkBytes) / 4e9;
    EXPECT_GE(seconds, ideal);
    EXPECT_LE(seconds, ideal * 1.05);
}

TEST(AStream, IsOverWhenTheLastOfItsTransfersIs) {
    TestLink one(kGigabyte);
    const FakeClock clock;
    const Time start = clock.now();
    const Path path = {&one.link};
    TransferQueue stream(path, clock);
    for (int i = 0; i < 100; ++i) {
        stream.add(1000);
    }
    EXPECT_EQ(clock.now(), start);
    stream.wait();
    EXPECT_EQ(clock.now(), start + 100'000);
}

class ANode : public testing::Test {
protected:
    // Seconds that bytes take over a path without other traffic.
    double seconds(const Path& path, double bytes) const {
        const Time start = clock_.now();
        return static_cast<double>(cross(path, start, static_cast<std::size_t>(bytes), clock_) -
                                   start) /
               1e9;
    }

    FakeClock clock_;
};

TEST_F(ANode, PutsPlainDrivesBehindTheHostLinkAndThoseOfCsdsNot) {
    NodeLinks links({.device_read = 3e9, .device_write = 2e9, .host = 1e9},
                    memory::Buffer(NodeLinks::kTimesBytes), clock_);
    const DrivePaths near_engine = links.add_drive(DrivePlace::near_engine);
    const DrivePaths plain = links.add_drive(DrivePlace::behind_host_link);
    EXPECT_NEAR(seconds(near_engine.read, 6e9), 2, 0.01);
    EXPECT_NEAR(seconds(near_engine.write, 6e9), 3, 0.01);
    EXPECT_NEAR(seconds(plain.read, 6e9), 6, 0.01);
    EXPECT_NEAR(seconds(plain.write, 6e9), 6, 0.01);
    EXPECT_NEAR(seconds(links.to_host(), 6e9), 6, 0.01);
}

TEST_F(ANode, HoldsBothDirectionsTogetherToTheirRate) {
    NodeLinks links({.host = 2e9, .host_total = 1e9}, memory::Buffer(NodeLinks::kTimesBytes),
                    clock_);
    const Time start = clock_.now();
    Crossing up(links.to_host(), start, 1'000'000'000);
    Crossing down(links.to_storage(), start, 1'000'000'000);
    Time now = start;
    while (!(up.is_over(now) & down.is_over(now))) {
        now = std::max(now + 1, std::min(up.due(), down.due()));
    }
    EXPECT_NEAR(static_cast<double>(now - start) / 1e9, 2, 0.01);
}

TEST_F(ANode, DelaysNothingWhereNoRateIsSet) {
    NodeLinks links({.device_read = 1e9}, memory::Buffer(NodeLinks::kTimesBytes), clock_);
    EXPECT_EQ(seconds(links.network(), 1e9), 0);
    EXPECT_EQ(seconds(links.add_drive(DrivePlace::near_engine).write, 1e9), 0);
    EXPECT_FALSE(Rates().are_shaped());
}

}  // namespace
}  // namespace nearstep::shaping
