// Tests what is found out about memory and cores, with cgroups of both versions.
#include "base/machine.hpp"

#include "base/units.hpp"
#include "support/test.hpp"

#include <sched.h>

#include <thread>

namespace nearstep {
namespace {

// A machine with 64 GiB, of which 48 are available, and files that a test writes.
class Machine : public testing::Test {
protected:
    void SetUp() override {
        write("/proc/meminfo", "MemTotal: 67108864 kB\nMemFree: 1 kB\nMemAvailable: 50331648 kB\n");
    }

    void write(const std::string& path, const std::string& text) const {
        folder_.write(path, text + "\n");
    }
    // Mounts version 2 and puts this process into `path` of it.
    void use_version_2(const std::string& path, const std::string& mount_root = "/") const {
        write("/proc/self/cgroup", "0::" + path);
        write("/proc/self/mountinfo",
              "31 23 0:28 " + mount_root +
                  " /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw");
    }
    std::string root() const { return folder_.path(); }
    std::size_t available() const { return machine_memory(root()).available_bytes; }

private:
    ScratchFolder folder_;
};

TEST_F(Machine, WithoutCgroupsHasAllItsMemory) {
    const MachineMemory memory = machine_memory(root());
    EXPECT_EQ(memory.total_bytes, 64 * GiB);
    EXPECT_EQ(memory.available_bytes, 48 * GiB);
    EXPECT_FALSE(memory.is_limited);
    EXPECT_FALSE(cpu_quota(root()));
}

TEST_F(Machine, CountsDroppableCacheOfACgroupAsAvailable) {
    use_version_2("/job");
    write("/sys/fs/cgroup/job/memory.max", std::to_string(8 * GiB));
    write("/sys/fs/cgroup/job/memory.current", std::to_string(5 * GiB));
    write("/sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file " + std::to_string(2 * GiB) +
                                                "\nactive_file " + std::to_string(GiB) +
                                                "\nfile_dirty " + std::to_string(GiB));
    const MachineMemory memory = machine_memory(root());
    EXPECT_TRUE(memory.is_limited);
    EXPECT_EQ(memory.total_bytes, 8 * GiB);
    EXPECT_EQ(memory.available_bytes, 5 * GiB);
}

TEST_F(Machine, IsLimitedByTheTightestAncestor) {
    use_version_2("/slice/job/step");
    write("/sys/fs/cgroup/slice/memory.max", std::to_string(20 * GiB));
    write("/sys/fs/cgroup/slice/memory.current", std::to_string(19 * GiB));
    write("/sys/fs/cgroup/slice/job/memory.max", std::to_string(4 * GiB));
    write("/sys/fs/cgroup/slice/job/memory.current", std::to_string(GiB));
    write("/sys/fs/cgroup/slice/job/step/memory.max", "max");
    EXPECT_EQ(machine_memory(root()).total_bytes, 4 * GiB);
    EXPECT_EQ(available(), GiB);  // what the slice has left
}

TEST_F(Machine, IsSlowedDownAboveMemoryHigh) {
    use_version_2("/job");
    write("/sys/fs/cgroup/job/memory.max", std::to_string(8 * GiB));
    write("/sys/fs/cgroup/job/memory.high", std::to_string(6 * GiB));
    EXPECT_EQ(available(), 6 * GiB);
}

TEST_F(Machine, IsLimitedByVersion1) {
    write("/proc/self/cgroup", "9:cpuset:/\n4:cpu,cpuacct:/a\n3:memory:/a/b\n0::/");
    write("/proc/self/mountinfo",
          "1 0 0:1 / / rw - ext4 /dev/sda rw\n"
          "2 1 0:2 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
          "3 1 0:3 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory");
    write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");  // no limit
    write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", std::to_string(2 * GiB));
    write("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", std::to_string(GiB));
    write("/sys/fs/cgroup/memory/a/memory.stat",
          "inactive_file 0\ntotal_inactive_file " + std::to_string(GiB / 2));
    write("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712");
    write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "250000");
    write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000");
    EXPECT_EQ(available(), GiB + GiB / 2);
    EXPECT_EQ(cpu_quota(root()), 2.5);
}

TEST_F(Machine, InAContainerSeesItsCgroupAsTheRootOfTheMount) {
    use_version_2("/docker/1234", "/docker/1234");
    write("/sys/fs/cgroup/memory.max", std::to_string(GiB));
    EXPECT_EQ(available(), GiB);
    use_version_2("/not/seen/here");
    EXPECT_EQ(available(), GiB);
    use_version_2("/../outside");
    EXPECT_EQ(available(), GiB);
}

TEST_F(Machine, GrantsTheTightestQuotaOfCpus) {
    use_version_2("/slice/job");
    write("/sys/fs/cgroup/slice/cpu.max", "150000 100000");
    write("/sys/fs/cgroup/slice/job/cpu.max", "400000 100000");
    EXPECT_EQ(cpu_quota(root()), 1.5);
    write("/sys/fs/cgroup/slice/cpu.max", "max 100000");
    EXPECT_EQ(cpu_quota(root()), 4.0);
}

TEST_F(Machine, IgnoresFilesThatAreNoNumbers) {
    use_version_2("/job");
    write("/sys/fs/cgroup/job/memory.max", "many");
    write("/sys/fs/cgroup/job/cpu.max", "");
    EXPECT_EQ(available(), 48 * GiB);
    EXPECT_FALSE(cpu_quota(root()));
}

TEST(UsableCores, AreAtLeastOneAndAtMostTheCpus) {
    EXPECT_GE(usable_cores(), 1);
    EXPECT_LE(usable_cores(), static_cast<int>(usable_cpus().size()));
}

TEST(HostCores, AreThoseOfAllProcesses) {
    const int all = host_cores();
    EXPECT_GE(all, usable_cores());
    std::thread([all] {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(static_cast<std::size_t>(usable_cpus().front()), &one);
        ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
        EXPECT_EQ(usable_cores(), 1);
        EXPECT_EQ(host_cores(), all);
    }).join();
}

}  // namespace
}  // namespace nearstep
