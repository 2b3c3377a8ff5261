// The emulated card under Debian's XRT library: ordinary XRT programs run on it, and their mistakes
// are detected.
#include "base/digest.hpp"
#include "fpga/card_fixture.hpp"
#include "support/test.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <xrt/xrt_bo.h>
#include <xrt/xrt_device.h>
#include <xrt/xrt_kernel.h>

namespace nearstep::emulator {
namespace {

using csd::plan_faults;
using csd::write_xclbin;
using fpga::require_cards;
using std::chrono::milliseconds;

constexpr std::size_t kBytes = 65536;
constexpr milliseconds kLong{20000};

CardDescription two_banks() {
    CardDescription card;
    card.kernels = {{fpga::kKernels[1], 2}};
    card.banks = {{.name = fpga::kBank, .base = 0x4000000000, .bytes = 1ULL << 30U},
                  {.name = "other", .base = 0x5000000000, .bytes = 1ULL << 20U}};
    return card;
}

void fill(xrt::bo& buffer, std::uint32_t value) {
    auto* words = buffer.map<std::uint32_t*>();
    std::fill(words, words + buffer.size() / 4, value);
}

std::uint64_t digest_of(std::uint32_t value) {
    const std::vector<std::uint32_t> words(kBytes / 4, value);
    return xxh3(std::as_bytes(std::span(words)));
}

std::uint64_t first_of(xrt::bo& buffer) { return *buffer.map<std::uint64_t*>(); }

// A card that digests what is in a buffer.
struct Digester {
    explicit Digester(unsigned index)
        : device((require_cards(), index)),
          kernel(device, device.load_xclbin(write_xclbin(folder, two_banks())), "nearstep_digest") {
    }

    xrt::bo buffer(std::uint32_t value, xrt::bo::flags flags = xrt::bo::flags::normal) const {
        xrt::bo made(device, kBytes, flags, kernel.group_id(0));
        fill(made, value);
        made.sync(XCL_BO_SYNC_BO_TO_DEVICE);
        return made;
    }
    xrt::run start(const xrt::bo& memory, const xrt::bo& digest) {
        return kernel(memory, digest, std::uint64_t{0}, std::uint64_t{memory.size()});
    }

    ScratchFolder folder;
    xrt::device device;
    xrt::kernel kernel;
};

class EmulatedCard : public testing::Test, protected Digester {
protected:
    EmulatedCard() : Digester(0) {}

    void SetUp() override { plan_faults(""); }
    void TearDown() override { plan_faults(""); }
};

TEST_F(EmulatedCard, RunsTheKernelAndShowsAForgottenSynchronisationInEitherDirection) {
    xrt::bo memory = buffer(3);
    xrt::bo digest = buffer(0);
    *memory.map<std::uint32_t*>() = 100;
    ASSERT_EQ(start(memory, digest).wait(kLong), ERT_CMD_STATE_COMPLETED);
    EXPECT_EQ(first_of(digest), 0U) << "the result came without a synchronisation";
    digest.sync(XCL_BO_SYNC_BO_FROM_DEVICE);
    EXPECT_EQ(first_of(digest), digest_of(3)) << "the kernel saw what was not synchronised";
}

TEST_F(EmulatedCard, PoisonsWhatTheHostDidNotWrite) {
    xrt::bo digest = buffer(0);
    const xrt::bo fresh(device, kBytes, kernel.group_id(0));
    ASSERT_EQ(start(fresh, digest).wait(kLong), ERT_CMD_STATE_COMPLETED);
    digest.sync(XCL_BO_SYNC_BO_FROM_DEVICE);
    EXPECT_EQ(first_of(digest), digest_of(0xA5A5A5A5));
}

TEST_F(EmulatedCard, FailsARunThatReachesIntoABankItIsNotConnectedTo) {
    const xrt::bo memory = buffer(3);
    const xrt::bo digest = buffer(0);
    const xrt::bo elsewhere(device, kBytes, 1);
    EXPECT_EQ(kernel.group_id(1), 0);
    // Passes the address: XRT would move a buffer argument to the right bank.
    xrt::run run(kernel);
    run.set_arg(0, memory);
    const std::uint64_t address = elsewhere.address();
    run.set_arg(1, address);
    run.set_arg(2, std::uint64_t{0});
    run.set_arg(3, std::uint64_t{kBytes});
    run.start();
    EXPECT_EQ(run.wait(kLong), ERT_CMD_STATE_ERROR);
    EXPECT_EQ(start(memory, digest).wait(kLong), ERT_CMD_STATE_COMPLETED) << "it recovers";
}

TEST_F(EmulatedCard, MovesAFileIntoAndOutOfAPeerToPeerBuffer) {
    const std::string path = folder.file("data");
    xrt::bo memory = buffer(5, xrt::bo::flags::p2p);
    xrt::bo digest = buffer(0, xrt::bo::flags::p2p);
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT, 0600);
    ASSERT_GE(file, 0) << "the scratch folder's file system refuses direct I/O";
    ASSERT_EQ(::pwrite(file, memory.map<void*>(), kBytes, 0), static_cast<ssize_t>(kBytes));
    fill(memory, 0);
    ASSERT_EQ(::pread(file, memory.map<void*>(), kBytes, 0), static_cast<ssize_t>(kBytes));
    EXPECT_EQ(::pread(file, memory.map<char*>(), kBytes, 512 + 7), -1) << "an unaligned offset";
    ASSERT_EQ(start(memory, digest).wait(kLong), ERT_CMD_STATE_COMPLETED);
    EXPECT_EQ(first_of(digest), digest_of(5)) << "peer to peer needs no synchronisation";
    ::close(file);
}

TEST_F(EmulatedCard, RefusesWhatACardRefuses) {
    EXPECT_THROW(xrt::bo(device, 2ULL << 30U, kernel.group_id(0)), std::exception) << "too large";
    EXPECT_THROW(xrt::bo(device, kBytes, xrt::bo::flags::host_only, kernel.group_id(0)),
                 std::exception);
    EXPECT_THROW(xrt::bo(device, kBytes, xrt::bo::flags::normal, 7), std::exception) << "no bank";
    EXPECT_THROW(xrt::kernel(device, device.get_xclbin_uuid(), "no_kernel"), std::exception);
    EXPECT_THROW(xrt::device(99), std::exception);
    EXPECT_THROW(xrt::device("0000:01:00.0"), std::exception);
    plan_faults("no_p2p=0:0,no_memory=0:1");
    EXPECT_THROW(xrt::bo(device, kBytes, kernel.group_id(0)), std::exception) << "as planned";
    EXPECT_NO_THROW(xrt::bo(device, kBytes, kernel.group_id(0)));
    EXPECT_THROW(xrt::bo(device, kBytes, xrt::bo::flags::p2p, kernel.group_id(0)), std::exception);
}

TEST_F(EmulatedCard, LosesDelaysAndFailsRunsOnDemand) {
    const xrt::bo memory = buffer(3);
    const xrt::bo digest = buffer(0);
    plan_faults("lost_completion=0:1,run_error=0:2,late_completion=0:3:300");
    xrt::run lost = start(memory, digest);
    EXPECT_EQ(lost.wait(milliseconds(100)), ERT_CMD_STATE_TIMEOUT);
    EXPECT_EQ(start(memory, digest).wait(kLong), ERT_CMD_STATE_ERROR);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(start(memory, digest).wait(kLong), ERT_CMD_STATE_COMPLETED);
    EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(300));
    EXPECT_EQ(lost.abort(), ERT_CMD_STATE_ABORT);
}

TEST_F(EmulatedCard, CopiesOverTheHostAsTheShellHasNoCopyUnit) {
    const xrt::bo one = buffer(3);
    xrt::bo other = buffer(4);
    other.copy(one);
    other.sync(XCL_BO_SYNC_BO_FROM_DEVICE);
    EXPECT_EQ(*other.map<std::uint32_t*>(), 3U);
}

TEST_F(EmulatedCard, HoldsPartsOfABuffer) {
    const xrt::bo memory = buffer(3);
    const xrt::bo part(memory, kBytes / 2, kBytes / 2);
    EXPECT_EQ(part.address(), memory.address() + kBytes / 2);
    xrt::bo unmapped(device, kBytes, xrt::bo::flags::device_only, kernel.group_id(1));
    EXPECT_THROW(unmapped.map<void*>(), std::exception);
    EXPECT_EQ(start(part, unmapped).wait(kLong), ERT_CMD_STATE_COMPLETED);
}

TEST_F(EmulatedCard, AnswersByItsAddressAndSaysWhatItIs) {
    const xrt::device second("0000:e0:01.1");
    EXPECT_EQ(second.get_info<xrt::info::device::bdf>(), "0000:e0:01.1");
    EXPECT_EQ(second.get_info<xrt::info::device::name>(), "xilinx_u2_emulated");
    EXPECT_THAT(second.get_info<xrt::info::device::platform>(), testing::HasSubstr("p2p"));
}

TEST(XclbinTest, DependsOnItsDescriptionAlone) {
    CardDescription other = two_banks();
    other.kernels[0].units = 3;
    EXPECT_EQ(make_xclbin(two_banks()), make_xclbin(two_banks()));
    EXPECT_NE(make_xclbin(two_banks()), make_xclbin(other));
    EXPECT_THAT(make_metadata(two_banks()),
                testing::HasSubstr("name=\"bytes\" addressQualifier=\"0\" id=\"3\""));
    other.banks.erase(other.banks.begin());
    EXPECT_THROW(make_xclbin(other), std::invalid_argument) << "a bank that no card has";
}

}  // namespace
}  // namespace nearstep::emulator
