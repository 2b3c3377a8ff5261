#include "store/ticket.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <stdexcept>
#include <vector>

namespace nearstep::store {
namespace {

TEST(LaneTest, RunsInOrderAndFinishesItsQueueAtTheEnd) {
    std::vector<int> order;
    {
        Worker lane;
        std::vector<Ticket> tickets;
        tickets.reserve(100);
        for (int i = 0; i < 100; ++i) {
            tickets.push_back(lane.submit([&order, i] { order.push_back(i); }));
        }
    }
    ASSERT_EQ(order.size(), 100U);
    for (int i = 0; i < 100; ++i) {
        EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
    }
}

TEST(LaneTest, GoesOnAfterAnError) {
    Worker lane;
    Ticket bad = lane.submit([] { throw std::runtime_error("bad"); });
    bool is_run = false;
    lane.submit([&is_run] { is_run = true; }).wait();
    EXPECT_TRUE(is_run);
    EXPECT_THROW(bad.wait(), std::runtime_error);
}

TEST(TicketTest, ReturnsAtOnceWhenEmptyOrWaitedFor) {
    Ticket empty;
    EXPECT_NO_THROW(empty.wait());
    Worker lane;
    Ticket bad = lane.submit([] { throw std::runtime_error("bad"); });
    EXPECT_THROW(bad.wait(), std::runtime_error);
    EXPECT_NO_THROW(bad.wait());
}

TEST(TicketTest, WaitsInItsDestructorAndWhenReplaced) {
    Worker lane;
    std::atomic<int> done{0};
    std::latch go(1);
    {
        const Ticket first = lane.submit([&] {
            go.wait();
            ++done;
        });
        go.count_down();
    }
    EXPECT_EQ(done, 1);
    Ticket second = lane.submit([&] { ++done; });
    second = Ticket();
    EXPECT_EQ(done, 2);
}

TEST(TicketTest, StandsForSeveralOperationsAndEndsWithTheLastOne) {
    Worker fast;
    Worker slow;
    std::latch go(1);
    std::atomic<bool> is_done{false};
    Ticket both = fast.submit([&] {
        go.count_down();
        throw std::runtime_error("bad");
    });
    both.add(slow.submit([&] {
        go.wait();
        is_done = true;
    }));
    EXPECT_THROW(both.wait(), std::runtime_error);
    EXPECT_TRUE(is_done);
}

}  // namespace
}  // namespace nearstep::store
