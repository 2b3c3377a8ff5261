// Writes sites of hosts that are made up, and reads such sites again.
#include "doctor/site_text.hpp"

#include "base/error.hpp"
#include "config/load.hpp"
#include "doctor/reached_hosts.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace nearstep::doctor {
namespace {

HostFacts gpu_host(const std::string& name) {
    HostFacts facts{.host = name,
                    .cores = 64,
                    .gpus = 4,
                    .gpu = "NVIDIA H100 80GB HBM3",
                    .operations = 989e12,
                    .gpu_memory = 85e9,
                    .gpu_memory_rate = 2.8e12,
                    .gpu_link = 50e9,
                    .memory = 800e9,
                    .memory_rate = 300e9,
                    .interface = "ib0",
                    .network = 50e9};
    for (const char* folder :
         {"/mnt/a/nearstep", "/mnt/b/nearstep", "/mnt/c/nearstep", "/mnt/d/nearstep"}) {
        facts.drives.push_back({.folder = folder, .rate = 8e9, .free = 3.8e12, .rated = 7008e12});
    }
    return facts;
}

// The settings of a config that has the site's text; sites may have keys of their own.
config::RunSettings settings_of(const SiteText& site) {
    config::Sources sources;
    sources.site_path = "site.toml";
    sources.site_text = site.toml;
    sources.needs_data = false;
    return config::parse(sources);
}

bool says(const SiteText& site, const std::string& words) {
    return std::ranges::any_of(
        site.missing, [&](const std::string& one) { return one.find(words) != std::string::npos; });
}

TEST(SiteText, IsASiteOfWhatWasFound) {
    const SiteText site = site_text({.site = "mine"}, {gpu_host("one"), gpu_host("two")});
    const config::RunSettings run = settings_of(site);
    EXPECT_EQ(run.hosts.names, (std::vector<std::string>{"one", "two"}));
    EXPECT_EQ(run.hosts.ranks, 4);
    EXPECT_EQ(run.hosts.devices, 4);
    EXPECT_EQ(run.hosts.cores_per_rank, 16);
    EXPECT_EQ(run.csd.per_rank, std::vector{1});
    EXPECT_EQ(run.csd.path.size(), 4U);
    EXPECT_EQ(run.csd.rated_tbw, 7008);
    EXPECT_EQ(run.link.device_read_gb_s, 4);
    EXPECT_EQ(run.link.host_gb_s, 32);
    EXPECT_EQ(run.link.network_gb_s, 50);
    EXPECT_EQ(run.plan.gpu_tflops, 989);
    EXPECT_EQ(run.plan.device_memory_gb, 25);
    // Values that no host tells are named at once, and nothing else is.
    EXPECT_EQ(site.missing.size(), 2U);
    EXPECT_TRUE(says(site, "checkpoint.path: "));
    EXPECT_TRUE(says(site, "plan.gpu_to_gpu_gb_s: "));
}

TEST(SiteText, SaysAllThatIsMissing) {
    HostFacts bare{.host = "bare", .gpus = 1, .gpu = "a new GPU"};
    bare.drives.push_back({.folder = "/mnt/a/nearstep", .obstacle = "it is read-only"});
    const SiteText site = site_text({.site = "mine"}, {bare});
    EXPECT_EQ(settings_of(site).csd.path, std::vector<std::string>{"/mnt/a/nearstep"});
    for (const char* key :
         {"csd.rated_tbw", "link.device_read_gb_s: it is read-only", "plan.gpu_tflops: a new GPU",
          "plan.gpu_memory_gb:", "plan.gpu_link_gb_s",
          "plan.host_memory_gb:", "plan.device_capacity_gb"}) {
        EXPECT_TRUE(says(site, key)) << key;
    }
}

TEST(SiteText, HasTheLeastOfHostsThatDiffer) {
    HostFacts other = gpu_host("two");
    other.gpus = 2;
    other.interface = "ib1";
    other.memory = 400e9;
    other.drives.erase(other.drives.begin());
    const SiteText site = site_text({.site = "mine"}, {gpu_host("one"), other});
    const config::RunSettings run = settings_of(site);
    EXPECT_EQ(run.hosts.ranks, 2);
    EXPECT_EQ(run.csd.path.size(), 2U);
    EXPECT_EQ(run.plan.host_memory_gb, 400);
    EXPECT_TRUE(says(site, "two has 2, one 4 GPUs"));
    EXPECT_TRUE(says(site, "two has no drive at /mnt/a/nearstep"));
    EXPECT_TRUE(says(site, "3 drives do not divide by 2 ranks"));
    EXPECT_TRUE(says(site, "hosts.interface"));
}

TEST(SiteText, GivesEachRankDrivesNearItsGpu) {
    HostFacts facts = gpu_host("one");
    facts.gpus = 2;
    facts.nodes = {0, 1};
    facts.gpu_nodes = {1, 0};
    facts.adapters = {{"ib0", 1}, {"eth0", std::nullopt}};
    for (DriveFacts& drive : facts.drives) {
        drive.node = drive.folder < "/mnt/c" ? 0 : 1;
    }
    const SiteText site =
        site_text({.site = "mine", .remote = "/bin/rsh", .has_hosts = true}, {facts});
    const config::RunSettings run = settings_of(site);
    EXPECT_EQ(run.csd.path, (std::vector<std::string>{"/mnt/c/nearstep", "/mnt/d/nearstep",
                                                      "/mnt/a/nearstep", "/mnt/b/nearstep"}));
    EXPECT_EQ(run.hosts.names, std::vector<std::string>{"one"});
    EXPECT_EQ(run.hosts.remote, "/bin/rsh");
    // mpirun would bind ranks in their order.
    EXPECT_EQ(run.hosts.cores_per_rank, 0);
    EXPECT_NE(site.toml.find("# NUMA node 1: GPU 0 \"/mnt/c/nearstep\" \"/mnt/d/nearstep\" "
                             "\"ib0\"\n"),
              std::string::npos)
        << site.toml;
}

TEST(HostFacts, CrossBetweenRanksWhole) {
    HostFacts facts = gpu_host("one");
    facts.gpu_nodes = {0, std::nullopt};
    facts.adapters = {{"ib0", 1}};
    EXPECT_EQ(to_json(host_facts(to_json(facts).dump())), to_json(facts));
}

TEST(HostFacts, OfAHostThatIsDamagedOrHostileAreRefused) {
    EXPECT_THROW(host_facts("{}"), Error);
    const nlohmann::json good = to_json(gpu_host("one"));
    for (const auto& [key, value] :
         std::vector<std::pair<const char*, nlohmann::json>>{{"cores", 1e300},
                                                             {"gpus", 1LL << 40},
                                                             {"memory", -1},
                                                             {"drives", 7},
                                                             {"gpu", nullptr},
                                                             {"nodes", {"x"}}}) {
        nlohmann::json bad = good;
        bad[key] = value;
        EXPECT_THROW(host_facts(bad.dump()), Error) << key;
    }
    // A name cannot add keys to the site.
    nlohmann::json crafted = good;
    crafted["gpu"] = "GPU\n[hosts]\nremote = \"/tmp/mine\"";
    const HostFacts facts = host_facts(crafted.dump());
    EXPECT_EQ(settings_of(site_text({.site = "mine"}, {facts})).hosts.remote, "ssh");
}

TEST(HostNames, AreRefusedIfTheyCouldBeOptionsOrFiles) {
    check_host_names({"node1", "user@node-2.site", "10.0.0.1"});
    for (const char* name :
         {"-oProxyCommand=id", "a,b", "configs/tiny.toml", "tiny.toml", "a b", "", "$(id)"}) {
        EXPECT_THROW(check_host_names({name}), ConfigError) << name;
    }
    EXPECT_THROW(check_host_names({"a", "a"}), ConfigError);
}

TEST(Mounts, AreDrivesThatAreWritable) {
    EXPECT_EQ(
        folders_of_mounts("/dev/nvme0n1p2 / ext4 rw 0 0\n/dev/nvme0n1p1 /boot/efi vfat rw 0 0\n"
                          "tmpfs /tmp tmpfs rw 0 0\n/dev/nvme2n1 /mnt/b xfs rw,noatime 0 0\n"
                          "/dev/nvme1n1 /mnt/a ext4 rw 0 0\n/dev/nvme1n1 /again ext4 rw 0 0\n"
                          "/dev/sr0 /cd iso9660 ro 0 0\n/dev/loop1 /snap squashfs rw 0 0\n"
                          "/dev/sdb /with\\040space ext4 rw 0 0\nbad\n"),
        (std::vector<std::string>{"/mnt/a/nearstep", "/mnt/b/nearstep"}));
}

TEST(Network, IsTheFastestThatIsUp) {
    namespace fs = std::filesystem;
    const fs::path sys = fs::temp_directory_path() / ("sys." + std::to_string(::getpid()));
    const auto write = [&](const std::string& file, const std::string& words) {
        fs::create_directories((sys / file).parent_path());
        std::ofstream(sys / file) << words;
    };
    EXPECT_EQ(find_network(sys).interface, "");
    write("class/net/eth0/speed", "10000\n");
    write("class/net/eth0/operstate", "up\n");
    write("class/net/eth1/speed", "100000\n");
    write("class/net/eth1/operstate", "down\n");
    write("class/net/lo/speed", "-1\n");
    write("class/net/lo/operstate", "unknown\n");
    EXPECT_EQ(find_network(sys).interface, "eth0");
    EXPECT_EQ(find_network(sys).rate, 1.25e9);
    for (const char* port : {"mlx5_0/ports/1", "mlx5_1/ports/1"}) {
        write(std::string("class/infiniband/") + port + "/rate", "400 Gb/sec (4X NDR)\n");
        write(std::string("class/infiniband/") + port + "/state", "4: ACTIVE\n");
    }
    EXPECT_EQ(find_network(sys).rate, 100e9);
    fs::remove_all(sys);
}

}  // namespace
}  // namespace nearstep::doctor
