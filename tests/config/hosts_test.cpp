// Tests which hosts ranks are put on, and lists of hosts that are refused.
#include "config/hosts.hpp"

#include "support/test.hpp"

namespace nearstep::config {
namespace {

using testing::ThrowsMessage;

RunSettings two_hosts() {
    RunSettings run;
    run.site = "there";
    run.hosts.names = {"left", "right"};
    run.hosts.ranks = 2;
    run.csd.per_rank = {2};
    run.csd.path = {"/a", "/b", "/c", "/d"};
    return run;
}

TEST(PlanHosts, FillsTheHostsOneAfterAnother) {
    const std::vector<HostPart> parts = plan_hosts(two_hosts(), 3);
    ASSERT_EQ(parts.size(), 2U);
    EXPECT_EQ(parts[0].name, "left");
    EXPECT_EQ(parts[0].ranks, 2);
    EXPECT_EQ(parts[0].devices, 4);
    EXPECT_EQ(parts[1].name, "right");
    EXPECT_EQ(parts[1].first_rank, 2);
    EXPECT_EQ(parts[1].ranks, 1);
    EXPECT_EQ(parts[1].devices, 2);
    EXPECT_EQ(ranks_of_site(two_hosts()), 4);
}

RunSettings with_storage_hosts(int storage_ranks) {
    RunSettings run = two_hosts();
    run.hosts.storage = {"store1", "store2"};
    run.csd.storage_ranks = storage_ranks;
    return run;
}

TEST(PlanHosts, PutsOneRankOnEachStorageHostBehindTheOthers) {
    const std::vector<HostPart> parts = plan_hosts(with_storage_hosts(2), 5);
    ASSERT_EQ(parts.size(), 4U);
    EXPECT_EQ(parts[1].name, "right");
    EXPECT_EQ(parts[1].ranks, 1);
    EXPECT_EQ(parts[1].devices, 0);
    EXPECT_EQ(parts[2].name, "store1");
    EXPECT_EQ(parts[2].first_rank, 3);
    EXPECT_EQ(parts[2].devices, 2);
    EXPECT_EQ(parts[3].name, "store2");
    EXPECT_EQ(parts[3].ranks, 1);
    EXPECT_EQ(ranks_of_site(with_storage_hosts(2)), 6);
    EXPECT_EQ(ranks_of_site(with_storage_hosts(1)), 5);
}

TEST(PlanHosts, RefusesStorageRanksWithoutHosts) {
    EXPECT_THAT([] { plan_hosts(with_storage_hosts(3), 6); },
                ThrowsMessage<ConfigError>(states("csd.storage_ranks", 3, 2, "hosts.storage")));
    config::RunSettings here = with_storage_hosts(1);
    here.hosts.names.clear();
    EXPECT_THAT([&] { plan_hosts(here, 2); }, ThrowsMessage<ConfigError>(states("hosts.names")));
}

TEST(PlanHosts, PutsAnyNumberOfRanksOnThisMachine) {
    const std::vector<HostPart> parts = plan_hosts(config::RunSettings(), 5);
    ASSERT_EQ(parts.size(), 1U);
    EXPECT_EQ(parts[0].name, "");
    EXPECT_EQ(parts[0].ranks, 5);
    EXPECT_EQ(ranks_of_site(config::RunSettings()), 1);
}

TEST(PlanHosts, RefusesMoreRanksThanTheHostsTake) {
    EXPECT_THAT([] { plan_hosts(two_hosts(), 5); }, ThrowsMessage<ConfigError>(states(4, 2, 5)));
    config::RunSettings one = two_hosts();
    one.hosts.names.clear();
    EXPECT_THAT([&] { plan_hosts(one, 3); },
                ThrowsMessage<ConfigError>(HasSubstr("takes 2 ranks")));
}

TEST(PlanHosts, RefusesMoreDevicesThanAHostHas) {
    config::RunSettings run = two_hosts();
    run.hosts.devices = 3;
    EXPECT_THAT([&] { plan_hosts(run, 4); },
                ThrowsMessage<ConfigError>(states("left", 3, "hosts.devices", 2, 4)));
    EXPECT_EQ(plan_hosts(run, 1).size(), 1U);
}

TEST(PlacesOfDevices, GoOnWhereTheLowerRanksOfTheHostEnd) {
    EXPECT_THAT(places_of_devices(two_hosts(), 0, 2, ""), ElementsAre(0, 1));
    EXPECT_THAT(places_of_devices(two_hosts(), 2, 2, ""), ElementsAre(2, 3));
    EXPECT_THAT(places_of_devices(two_hosts(), 3, 3, ""), ElementsAre(3, 0, 1));
    EXPECT_THAT(places_of_devices(two_hosts(), 4, 0, ""), ElementsAre(0));
}

TEST(PlacesOfDevices, AreThoseThatTheJobWasGranted) {
    EXPECT_THAT(places_of_devices(two_hosts(), 1, 2, "0,2-3"), ElementsAre(2, 3));
    EXPECT_THAT(places_of_devices(two_hosts(), 2, 0, "2-3"), ElementsAre(2));
    EXPECT_THAT(places_of_devices(two_hosts(), 0, 0, "none"), ElementsAre(0));
    EXPECT_THROW(places_of_devices(two_hosts(), 0, 1, "none"), ConfigError);
    EXPECT_THAT([] { places_of_devices(two_hosts(), 1, 2, "2-3"); },
                ThrowsMessage<ConfigError>(states(2, "2-3")));
    EXPECT_THAT([] { places_of_devices(two_hosts(), 0, 1, "4"); },
                ThrowsMessage<ConfigError>(states(4, "csd.path")));
}

TEST(FoldersOfHost, AreAllOrThoseThatTheJobWasGranted) {
    EXPECT_EQ(folders_of_host(two_hosts(), ""), 4);
    EXPECT_EQ(folders_of_host(two_hosts(), "0,2-3"), 3);
    EXPECT_THROW(folders_of_host(two_hosts(), "0-"), ConfigError);
}

TEST(PlacesOfDevices, RefuseWhatIsNoListOfNumbers) {
    for (const char* list :
         {"a", "1,", "-1", "3-1", "1;2", ",1", "0-99999999", "2147483647", "4096", "1\n2"}) {
        EXPECT_THAT(
            [&] { places_of_devices(two_hosts(), 0, 1, list); },
            ThrowsMessage<ConfigError>(AllOf(states("NEARSTEP_CSDS"), Not(HasSubstr("\n")))))
            << list;
    }
}

}  // namespace
}  // namespace nearstep::config
