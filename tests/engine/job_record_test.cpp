#include "engine/restart/job_record.hpp"

#include "support/test.hpp"

namespace nearstep::engine {
namespace {

class JobRecord : public testing::Test {
protected:
    JobRecord() {
        environment_.set("XDG_STATE_HOME", home_.path());
        environment_.set("SLURM_CLUSTER_NAME", "rack");
        begin("7", "");
    }
    void begin(const std::string& job, const std::string& restarts) {
        environment_.set("SLURM_JOB_ID", job);
        environment_.set("SLURM_RESTART_COUNT", restarts);
    }
    std::string record() const { return home_.file("nearstep/slurm-rack-7"); }

    ScratchFolder home_;
    Environment environment_;
};

TEST_F(JobRecord, TellsWhatAnEarlierStartOfTheJobBegan) {
    EXPECT_FALSE(may_have_begun("/one"));
    note_begun("/one");
    note_begun("/one");
    EXPECT_EQ(bytes_of(record()).size(), 17);
    EXPECT_FALSE(may_have_begun("/one"));  // in the same start
    begin("7", "1");
    EXPECT_TRUE(may_have_begun("/one"));
    EXPECT_TRUE(may_have_begun("/two/../one"));
    EXPECT_FALSE(may_have_begun("/two"));  // the job's second run, which had its turn never before
    note_begun("/two");
    begin("7", "2");
    EXPECT_TRUE(may_have_begun("/two"));
    begin("8", "");
    EXPECT_FALSE(may_have_begun("/one"));
}

TEST_F(JobRecord, TakesNothingForKnownWithoutARecordOfTheFirstStart) {
    begin("7", "1");
    EXPECT_TRUE(may_have_begun("/one"));
    note_begun("/two");  // makes no record, which would lack what the first start began
    EXPECT_FALSE(std::filesystem::exists(record()));
    EXPECT_TRUE(may_have_begun("/one"));
    begin("", "1");
    EXPECT_TRUE(may_have_begun("/one"));
    begin("../7", "1");
    EXPECT_TRUE(may_have_begun("/one"));
    begin("", "");
    EXPECT_FALSE(may_have_begun("/one"));
    note_begun("/one");
    EXPECT_TRUE(std::filesystem::is_empty(home_.path()));
}

TEST_F(JobRecord, FollowsNoLink) {
    std::filesystem::create_directories(home_.file("nearstep"));
    home_.write("thesis.tex", "a thesis");
    std::filesystem::create_symlink(home_.file("thesis.tex"), record());
    note_begun("/one");
    EXPECT_EQ(bytes_of(home_.file("thesis.tex")), "a thesis");
}

}  // namespace
}  // namespace nearstep::engine
