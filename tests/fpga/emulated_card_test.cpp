// The emulated card under Debian's XRT library: ordinary XRT programs run on it, and their mistakes
// are detected.
#include "fpga/emulator/xclbin_writer.hpp"
#include "fpga/test_kernel.hpp"
#include "store/scratch_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>
#include <xrt/xrt_bo.h>
#include <xrt/xrt_device.h>
#include <xrt/xrt_kernel.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace nearstep::emulator {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kBytes = 1024 * fpga::kWordBytes;
constexpr std::uint32_t kWords = kBytes / fpga::kWordBytes;
constexpr milliseconds kLong{20000};

CardDescription two_banks() {
    CardDescription card;
    card.kernels = {{kAdd, 2}};
    card.banks = {{.name = fpga::kBank, .base = 0x4000000000, .bytes = 1ULL << 30U},
                  {.name = "other", .base = 0x5000000000, .bytes = 1ULL << 20U}};
    return card;
}

// Plans faults in the driver, which is loaded when a card is first opened.
void plan_faults(const std::string& list) {
    const auto plan =
        reinterpret_cast<int (*)(const char*)>(::dlsym(RTLD_DEFAULT, "nearstep_card_faults"));
    ASSERT_NE(plan, nullptr);
    ASSERT_EQ(plan(list.c_str()), 0);
}

class EmulatedCard : public testing::Test {
protected:
    explicit EmulatedCard(unsigned index = 0) : device(index) {
        const std::string path = folder.file("test.xclbin");
        const auto bytes = make_xclbin(two_banks());
        std::ofstream(path, std::ios::binary)
            .write(reinterpret_cast<const char*>(bytes.data()),
                   static_cast<std::streamsize>(bytes.size()));
        kernel = xrt::kernel(device, device.load_xclbin(path), "add_words");
    }

    void SetUp() override { plan_faults(""); }
    void TearDown() override { plan_faults(""); }

    xrt::bo buffer(std::uint32_t value, xrt::bo::flags flags = xrt::bo::flags::normal) {
        xrt::bo made(device, kBytes, flags, kernel.group_id(0));
        auto* words = made.map<std::uint32_t*>();
        std::fill(words, words + kBytes / 4, value);
        made.sync(XCL_BO_SYNC_BO_TO_DEVICE);
        return made;
    }

    xrt::run start(const xrt::bo& one, const xrt::bo& other, const xrt::bo& sum) {
        return kernel(one, other, sum, kWords);
    }

    ScratchFolder folder;
    xrt::device device;
    xrt::kernel kernel;
};

std::uint32_t first_of(xrt::bo& buffer) { return *buffer.map<std::uint32_t*>(); }

TEST_F(EmulatedCard, RunsTheKernelOnWhatTheHostSynchronised) {
    xrt::bo one = buffer(3);
    xrt::bo other = buffer(4);
    xrt::bo sum = buffer(0);
    EXPECT_EQ(start(one, other, sum).wait(kLong), ERT_CMD_STATE_COMPLETED);
    sum.sync(XCL_BO_SYNC_BO_FROM_DEVICE);
    EXPECT_EQ(first_of(sum), 7U);
}

TEST_F(EmulatedCard, ShowsAForgottenSynchronisationInEitherDirection) {
    xrt::bo one = buffer(3);
    xrt::bo other = buffer(4);
    xrt::bo sum = buffer(0);
    *one.map<std::uint32_t*>() = 100;
    ASSERT_EQ(start(one, other, sum).wait(kLong), ERT_CMD_STATE_COMPLETED);
    EXPECT_EQ(first_of(sum), 0U) << "the result came without a synchronisation";
    sum.sync(XCL_BO_SYNC_BO_FROM_DEVICE);
    EXPECT_EQ(first_of(sum), 7U) << "the kernel saw what was not synchronised";
}

TEST_F(EmulatedCard, PoisonsWhatTheHostDidNotWrite) {
    xrt::bo other = buffer(0);
    xrt::bo sum = buffer(0);
    xrt::bo fresh(device, kBytes, kernel.group_id(0));
    ASSERT_EQ(start(fresh, other, sum).wait(kLong), ERT_CMD_STATE_COMPLETED);
    sum.sync(XCL_BO_SYNC_BO_FROM_DEVICE);
    EXPECT_EQ(first_of(sum), 0xA5A5A5A5U);
}

TEST_F(EmulatedCard, FailsARunThatReachesIntoABankItIsNotConnectedTo) {
    xrt::bo one = buffer(3);
    xrt::bo other = buffer(4);
    const xrt::bo elsewhere(device, kBytes, 1);
    EXPECT_EQ(kernel.group_id(2), 0);
    // Passes the address: XRT would move a buffer argument to the right bank.
    xrt::run run(kernel);
    run.set_arg(0, one);
    run.set_arg(1, other);
    const std::uint64_t address = elsewhere.address();
    run.set_arg(2, address);
    run.set_arg(3, kWords);
    run.start();
    EXPECT_EQ(run.wait(kLong), ERT_CMD_STATE_ERROR);
    xrt::bo sum = buffer(0);
    EXPECT_EQ(start(one, other, sum).wait(kLong), ERT_CMD_STATE_COMPLETED) << "it recovers";
}

TEST_F(EmulatedCard, MovesAFileIntoAndOutOfAPeerToPeerBuffer) {
    const std::string path = folder.file("data");
    xrt::bo one = buffer(5, xrt::bo::flags::p2p);
    xrt::bo other = buffer(6);
    xrt::bo sum = buffer(0, xrt::bo::flags::p2p);
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT, 0600);
    ASSERT_GE(file, 0) << "the scratch folder's file system refuses direct I/O";
    ASSERT_EQ(::pwrite(file, one.map<void*>(), kBytes, 0), static_cast<ssize_t>(kBytes));
    std::memset(one.map<void*>(), 0, kBytes);
    ASSERT_EQ(::pread(file, one.map<void*>(), kBytes, 0), static_cast<ssize_t>(kBytes));
    EXPECT_EQ(::pread(file, one.map<char*>(), kBytes, 512 + 7), -1) << "an unaligned offset";
    ASSERT_EQ(start(one, other, sum).wait(kLong), ERT_CMD_STATE_COMPLETED);
    EXPECT_EQ(first_of(sum), 11U) << "peer to peer needs no synchronisation";
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
    xrt::bo one = buffer(3);
    xrt::bo other = buffer(4);
    xrt::bo sum = buffer(0);
    plan_faults("lost_completion=0:1,run_error=0:2,late_completion=0:3:300");
    xrt::run lost = start(one, other, sum);
    EXPECT_EQ(lost.wait(milliseconds(100)), ERT_CMD_STATE_TIMEOUT);
    EXPECT_EQ(start(one, other, sum).wait(kLong), ERT_CMD_STATE_ERROR);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(start(one, other, sum).wait(kLong), ERT_CMD_STATE_COMPLETED);
    EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(300));
    EXPECT_EQ(lost.abort(), ERT_CMD_STATE_ABORT);
}

TEST_F(EmulatedCard, CopiesOverTheHostAsTheShellHasNoCopyUnit) {
    xrt::bo one = buffer(3);
    xrt::bo other = buffer(4);
    other.copy(one);
    other.sync(XCL_BO_SYNC_BO_FROM_DEVICE);
    EXPECT_EQ(first_of(other), 3U);
}

TEST_F(EmulatedCard, HoldsPartsOfABuffer) {
    xrt::bo one = buffer(3);
    xrt::bo part(one, kBytes / 2, kBytes / 2);
    EXPECT_EQ(part.address(), one.address() + kBytes / 2);
    xrt::bo sum(device, kBytes, xrt::bo::flags::device_only, kernel.group_id(2));
    EXPECT_THROW(sum.map<void*>(), std::exception);
    EXPECT_EQ(kernel(part, part, sum, kWords / 2).wait(kLong), ERT_CMD_STATE_COMPLETED);
}

TEST_F(EmulatedCard, AnswersByItsAddressAndSaysWhatItIs) {
    const xrt::device second("0000:e0:01.1");
    EXPECT_EQ(second.get_info<xrt::info::device::bdf>(), "0000:e0:01.1");
    EXPECT_EQ(second.get_info<xrt::info::device::name>(), "xilinx_u2_emulated");
    EXPECT_THAT(second.get_info<xrt::info::device::platform>(), testing::HasSubstr("p2p"));
}

TEST(EmulatedCards, FourRunFromFourThreads) {
    constexpr unsigned kCards = 4;
    ScratchFolder folder;
    const std::string path = folder.file("test.xclbin");
    const auto bytes = make_xclbin(two_banks());
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    // XRT requires that one thread does all of this.
    std::vector<xrt::device> devices;
    std::vector<xrt::kernel> kernels;
    for (unsigned card = 0; card < kCards; ++card) {
        devices.emplace_back(card);
        kernels.emplace_back(devices[card], devices[card].load_xclbin(path), "add_words");
    }
    std::vector<std::uint32_t> wrong(kCards);
    {
        std::vector<std::jthread> threads;
        for (unsigned card = 0; card < kCards; ++card) {
            threads.emplace_back([&, card] {
                for (std::uint32_t round = 0; round < 50; ++round) {
                    xrt::bo one(devices[card], kBytes, kernels[card].group_id(0));
                    xrt::bo sum(devices[card], kBytes, kernels[card].group_id(2));
                    auto* words = one.map<std::uint32_t*>();
                    std::fill(words, words + kBytes / 4, card * 1000 + round);
                    one.sync(XCL_BO_SYNC_BO_TO_DEVICE);
                    const auto state = kernels[card](one, one, sum, kWords).wait(kLong);
                    sum.sync(XCL_BO_SYNC_BO_FROM_DEVICE);
                    const bool is_right = state == ERT_CMD_STATE_COMPLETED &&
                                          first_of(sum) == 2 * (card * 1000 + round);
                    wrong[card] += is_right ? 0 : 1;
                }
            });
        }
    }
    EXPECT_THAT(wrong, testing::Each(0U));
}

TEST(XclbinTest, DependsOnItsDescriptionAlone) {
    CardDescription other = two_banks();
    other.kernels[0].units = 3;
    EXPECT_EQ(make_xclbin(two_banks()), make_xclbin(two_banks()));
    EXPECT_NE(make_xclbin(two_banks()), make_xclbin(other));
    EXPECT_THAT(make_metadata(two_banks()),
                testing::HasSubstr("name=\"words\" addressQualifier=\"0\" id=\"3\""));
    other.banks.erase(other.banks.begin());
    EXPECT_THROW(make_xclbin(other), std::invalid_argument) << "a bank that no card has";
}

}  // namespace
}  // namespace nearstep::emulator
