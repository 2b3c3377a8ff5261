// Tests the reading of the devices that Slurm grants to a job.
#include "config/slurm_grant.hpp"

#include "support/test.hpp"

namespace nearstep::config {
namespace {

std::vector<std::string> grants_in(const std::string& lines) {
    std::vector<std::string> out;
    for (const HostGrant& grant : parse_grants(lines, [](const std::string& list) {
             return list == "n[1-2]" ? std::vector<std::string>{"n1", "n2"} : std::vector{list};
         })) {
        out.push_back(grant.host + "=" + grant.devices);
    }
    return out;
}

TEST(SlurmGrant, IsReadWithAndWithoutTypes) {
    EXPECT_THAT(grants_in("JobId=7 JobName=csd:9(IDX:9)\n   NodeList=n[1-3]\n"
                          "     Nodes=n[1-2] CPU_IDs=0-1 Mem=0 GRES=csd:2(IDX:0-1)\n"
                          "     Nodes=n3 CPU_IDs=0 Mem=0 GRES=csd:nvme:1(IDX:2)\n"),
                testing::ElementsAre("n1=0-1", "n2=0-1", "n3=2"));
}

TEST(SlurmGrant, JoinsTypesAndLeavesOtherResourcesOut) {
    EXPECT_THAT(grants_in("  Nodes=a CPU_IDs=0 Mem=0 "
                          "GRES=gpu:a100:4(IDX:0-3),csd:nvme:2(IDX:0,2),csd:sata:1(IDX:5),"
                          "xcsd:1(IDX:9)\n"),
                testing::ElementsAre("a=0,2,5"));
}

TEST(SlurmGrant, NamesHostsWithoutDevicesBesideThoseThatHaveSome) {
    EXPECT_THAT(grants_in("JobId=7 HetJobId=7 HetJobOffset=0\n     Nodes=n[1-2] CPU_IDs=0-1 Mem=0 "
                          "GRES=gpu:1(IDX:0)\nJobId=8 HetJobId=7 HetJobOffset=1\n     Nodes=s "
                          "CPU_IDs=0 Mem=0 GRES=csd:2(IDX:0-1)\n"),
                testing::ElementsAre("n1=none", "n2=none", "s=0-1"));
    EXPECT_THROW(grants_in("Nodes=n1 GRES=csd:2(CNT:2)\nNodes=s GRES=csd:2(IDX:0-1)\n"),
                 ConfigError);
}

TEST(SlurmGrant, WithoutNumbersIsRefused) {
    for (const char* resources : {"", "gpu:1(IDX:0)", "csd:2(CNT:2)", "csd:0", "csd:1(IDX:N/A)"}) {
        EXPECT_THROW(grants_in("Nodes=a CPU_IDs=0 Mem=0 GRES=" + std::string(resources) + "\n"),
                     ConfigError)
            << resources;
    }
}

TEST(SlurmGrant, OfNoJobIsEmpty) {
    EXPECT_THAT(grants_in("slurm_load_jobs error\n"), testing::IsEmpty());
}

}  // namespace
}  // namespace nearstep::config
