// Binds ranks on a made-up machine of two NUMA nodes, with CPU 0 and CPU 1.
#include "engine/placement/rank_binding.hpp"

#include "base/machine.hpp"
#include "support/places.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sched.h>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace nearstep::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::size_t kCpus = 2;

void allow(const std::vector<int>& cpus) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int cpu : cpus) {
        CPU_SET(static_cast<std::size_t>(cpu), &set);
    }
    ::sched_setaffinity(0, sizeof set, &set);
}

class RanksOfTwoNodes : public testing::Test {
protected:
    void SetUp() override {
        before_ = usable_cpus();
        allow({0, 1});
        const bool has_both = usable_cpus().size() == kCpus;
        ::setenv("HWLOC_XMLFILE", test::source_file("tests/locality/two_nodes.xml").c_str(), 1);
        ::setenv("HWLOC_THISSYSTEM", "1", 1);
        if (!world_.agree(has_both)) {
            GTEST_SKIP() << "this process may not use CPU 0 and CPU 1";
        }
    }
    void TearDown() override {
        ::unsetenv("HWLOC_XMLFILE");
        ::unsetenv("HWLOC_THISSYSTEM");
        allow(before_);
    }

    mpi::Communicator world_ = mpi::Communicator::world(std::chrono::seconds(60));

private:
    std::vector<int> before_;
};

TEST_F(RanksOfTwoNodes, AreBoundOneToEach) {
    const std::vector<std::string> lines = bind_near_devices(world_, {"/proc"}, std::nullopt);
    ASSERT_EQ(lines.size(), 1U);
    const auto node = [&](int rank) { return rank * 2 / world_.size(); };
    if (world_.size() == 1) {
        EXPECT_EQ(usable_cpus().size(), kCpus);
        EXPECT_THAT(lines[0], HasSubstr("rank 0 not bound (drive ?)"));
    } else {
        EXPECT_THAT(usable_cpus(), ElementsAre(node(world_.rank())));
        std::vector<int> of_thread;
        std::thread([&] { of_thread = usable_cpus(); }).join();
        EXPECT_EQ(of_thread, usable_cpus());
        EXPECT_THAT(lines[0], HasSubstr("rank 1 on 1 (drive ?)"));
        // Another run of the same process finds them there.
        EXPECT_EQ(bind_near_devices(world_, {"/proc"}, std::nullopt), lines);
    }
    EXPECT_THAT(lines[0], HasSubstr("network adapters of rank 0's host: ib0 1, mlx5_0 1"));
}

TEST_F(RanksOfTwoNodes, StayWhereTheyAreIfOneIsBoundAlready) {
    if (world_.rank() == 0) {
        allow({0});
    }
    const std::vector<int> before = usable_cpus();
    const std::vector<std::string> lines = bind_near_devices(world_, {}, std::nullopt);
    EXPECT_EQ(usable_cpus(), before);
    EXPECT_THAT(lines[0], HasSubstr("rank 0 on 0"));
    EXPECT_EQ(world_.size() == 1 || lines[0].find("rank 1 not bound") != std::string::npos, true)
        << lines[0];
}

}  // namespace
}  // namespace nearstep::engine
