// Settings become a problem: units, and required keys of a site.
#include "plan/problem.hpp"

#include "base/error.hpp"
#include "config/load.hpp"
#include "support/test.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace nearstep::plan {
namespace {

const std::vector<std::string> kRates = {
    "plan.gpu_tflops=100",     "plan.gpu_memory_gb=80",     "plan.gpu_link_gb_s=25",
    "plan.host_memory_gb=500", "plan.device_memory_gb=3.6", "plan.device_capacity_gb=4000",
    "link.host_gb_s=12",       "link.device_read_gb_s=3",   "link.device_write_gb_s=1.8",
    "link.network_gb_s=25"};

config::RunSettings run_with(std::vector<std::string> overrides) {
    return config::parse({.config_path = "some.toml",
                          .config_text = "",
                          .overrides = std::move(overrides),
                          .needs_data = false});
}

TEST(Site, HasRatesInUnitsOfOne) {
    std::vector<std::string> rates = kRates;
    rates.insert(rates.end(), {"plan.gpu_efficiency=0.5", "csd.update_mparam_s=550"});
    const Site site = site_of(run_with(rates), 2);
    EXPECT_DOUBLE_EQ(site.gpu_operations, 50e12);
    EXPECT_DOUBLE_EQ(site.device_write, 1.8e9);
    EXPECT_DOUBLE_EQ(site.network, 25e9);
    EXPECT_DOUBLE_EQ(site.device_updates, 550e6);
    EXPECT_DOUBLE_EQ(site.latency_s, 5e-6);
    EXPECT_DOUBLE_EQ(site.gpu_to_gpu, site.gpu_link) << "by way of the host";
}

TEST(Site, IsScaledAsShapedLinksAre) {
    std::vector<std::string> rates = kRates;
    rates.insert(rates.end(), {"link.scale=0.5", "link.host_total_gb_s=16"});
    const Site site = site_of(run_with(rates), 2);
    EXPECT_DOUBLE_EQ(site.device_read, 1.5e9);
    EXPECT_DOUBLE_EQ(site.host_link, 6e9);
    EXPECT_DOUBLE_EQ(site.host_link_total, 8e9);
    EXPECT_DOUBLE_EQ(site.network, 12.5e9);
    EXPECT_DOUBLE_EQ(site.gpu_link, 25e9);
}

TEST(Site, HasTheDrivesOfStorageNodesAndOfTheOthers) {
    std::vector<std::string> rates = kRates;
    rates.insert(rates.end(), {"csd.per_rank=[1,0,1,2,4,6]", "csd.storage_ranks=2", "hosts.ranks=2",
                               "train.global_batch=8"});
    const Site site = site_of(run_with(rates), 4);
    EXPECT_EQ(site.csds, 5);
    EXPECT_EQ(site.csds_beside, 2);
}

TEST(Site, MustSayWhatAPlanNeeds) {
    for (std::size_t left_out = 0; left_out < kRates.size(); ++left_out) {
        std::vector<std::string> rates = kRates;
        rates.erase(rates.begin() + static_cast<std::ptrdiff_t>(left_out));
        const std::string key = kRates[left_out].substr(0, kRates[left_out].find('='));
        EXPECT_THAT(message_of([&] { site_of(run_with(rates), 2); }),
                    testing::HasSubstr("set " + key + " in the site file"));
    }
}

TEST(Site, NeedsNoNetworkForOneNode) {
    std::vector<std::string> rates = kRates;
    rates.pop_back();
    EXPECT_NO_THROW(static_cast<void>(site_of(run_with(rates), 1)));
}

TEST(Workload, CountsTheProductsOfParametersAndOfAttention) {
    const config::RunSettings run =
        run_with({"model.layers=2", "model.width=64", "model.context=32"});
    const Workload work =
        workload_of(run, {.parameters = 1000, .largest_block = 10, .blocks = 4}, 16);
    EXPECT_DOUBLE_EQ(work.operations_per_sequence, 32 * (2 * 1000 + 4 * 2 * 32 * 64));
    EXPECT_DOUBLE_EQ(work.checkpoint_bytes, 32 * 64 * 2 * 3);
    EXPECT_DOUBLE_EQ(work.working_bytes, 32 * (32 * 64 + 4 * 4 * 32) + 32 * 256 * (4 + 2));
    EXPECT_DOUBLE_EQ(work.sequences, 16);
    EXPECT_FALSE(work.is_serial);
    // A llama whose embedding is only looked up.
    const config::RunSettings llama =
        run_with({"model.architecture=llama", "model.layers=2", "model.width=64",
                  "model.hidden=100", "model.context=32", "model.tied=false"});
    const Workload its =
        workload_of(llama, {.parameters = 1000 + 256 * 64, .largest_block = 10, .blocks = 4}, 16);
    EXPECT_DOUBLE_EQ(its.operations_per_sequence, work.operations_per_sequence);
    EXPECT_DOUBLE_EQ(its.working_bytes, 32 * (16 * 64 + 8 * 100 + 4 * 4 * 32) + 32 * 256 * (4 + 2));
    EXPECT_TRUE(workload_of(run_with({"mode=su"}), {}, 1).is_serial);
}

}  // namespace
}  // namespace nearstep::plan
