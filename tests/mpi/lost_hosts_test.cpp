// Tests which hosts count as lost.
#include "mpi/lost_hosts.hpp"

#include "base/machine.hpp"
#include "support/test.hpp"

namespace nearstep::mpi {
namespace {

constexpr const char* kNobody = "224.0.0.1";  // of a group, to which TCP does not connect

TEST(LostHosts, AnswerNeitherByTakingNorByRefusing) {
    EXPECT_EQ(silent_hosts({"127.0.0.1", kNobody}), std::vector<std::string>{kNobody});
    EXPECT_TRUE(silent_hosts({}).empty());
}

TEST(LostHosts, AreNamedWithoutThisOne) {
    note_hosts({"127.0.0.1", own_host(), kNobody});
    EXPECT_EQ(describe_silent_hosts(), std::string("; no answer from host ") + kNobody);
    note_hosts({own_host()});
    EXPECT_EQ(describe_silent_hosts(), "");
}

}  // namespace
}  // namespace nearstep::mpi
