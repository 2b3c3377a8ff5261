// A card as the host sees it: its refusals and messages.
#include "fpga/host/card.hpp"

#include "base/digest.hpp"
#include "fpga/card_fixture.hpp"
#include "fpga/host/inventory.hpp"
#include "store/file.hpp"
#include "support/test.hpp"

namespace nearstep::fpga {
namespace {

using csd::plan_faults;

constexpr std::size_t kBytes = 8192;

const KernelDescription& updater() { return kKernels[0]; }
const KernelDescription& digest() { return kKernels[1]; }

CardBuffer random_buffer(Card& card, BufferKind kind) {
    const CardBuffer buffer = card.allocate(kind, kBytes, digest(), "memory", "a test");
    std::size_t i = 0;
    for (std::byte& byte : buffer.host()) {
        byte = static_cast<std::byte>(i++ * 37 % 251);
    }
    return buffer;
}

std::uint64_t digest_of(Card& card, const CardBuffer& buffer) {
    const CardBuffer result = card.allocate(BufferKind::normal, 4096, digest(), "digest", "a test");
    fpga::KernelRun run = card.make_run(digest());
    run.set("memory", buffer);
    run.set("digest", result);
    run.set("offset", std::uint64_t{0});
    run.set("bytes", std::uint64_t{kBytes});
    run.start();
    run.wait("to test");
    result.from_card(0, kWordBytes);
    std::uint64_t found = 0;
    std::memcpy(&found, result.host().data(), sizeof found);
    return found;
}

class CardTest : public testing::Test {
protected:
    void TearDown() override { plan_faults(""); }

    Card card{{.card = "0", .xclbin = csd::emulated_xclbin()}};
};

TEST_F(CardTest, DigestsWhatIsInItsMemory) {
    EXPECT_EQ(card.units(updater()), 2);
    EXPECT_TRUE(card.has_peer_to_peer());
    EXPECT_THAT(card.name(), AllOf(HasSubstr("0000:e0:00.1"), HasSubstr("xilinx_u2")));
    const CardBuffer seen = random_buffer(card, BufferKind::peer_to_peer);
    EXPECT_EQ(digest_of(card, seen), xxh3(seen.host()));
    const CardBuffer copied = random_buffer(card, BufferKind::normal);
    EXPECT_NE(digest_of(card, copied), xxh3(copied.host())) << "it was not copied";
    copied.to_card(0, kBytes);
    EXPECT_EQ(digest_of(card, copied), xxh3(copied.host()));
}

TEST_F(CardTest, RefusesWhatIsNotAligned) {
    const CardBuffer buffer = random_buffer(card, BufferKind::normal);
    EXPECT_THROW(buffer.to_card(8, 64), ContractError);
    EXPECT_THROW(buffer.from_card(0, 65), ContractError);
    EXPECT_THROW(buffer.to_card(kBytes, 64), ContractError);
    ScratchFolder folder;
    store::File file(folder.file("data"));
    file.reserve(2 * kBytes);
    const CardBuffer window = random_buffer(card, BufferKind::peer_to_peer);
    const auto write = [&](std::span<std::byte> memory, std::int64_t offset) {
        file.transfer({store::Direction::write, {{memory.data(), memory.size()}}, offset});
    };
    EXPECT_THROW(write(window.host(), 64), ContractError);
    EXPECT_THROW(write(window.host().subspan(64, 4096), 0), ContractError);
    EXPECT_NO_THROW(write(window.host(), 4096));
}

TEST_F(CardTest, RefusesArgumentsThatAreNotThoseOfItsTable) {
    fpga::KernelRun run = card.make_run(digest());
    EXPECT_THROW(run.set("memories", std::uint64_t{0}), ContractError);
    EXPECT_THROW(run.set("offset", std::uint32_t{0}), ContractError);
    EXPECT_THROW(run.set("offset", 0.0F), ContractError);
    EXPECT_THROW(run.set("bytes", random_buffer(card, BufferKind::normal)), ContractError);
    EXPECT_THROW(card.allocate(BufferKind::normal, kBytes, digest(), "bytes", "a test"),
                 ContractError);
    EXPECT_THROW(
        card.allocate(BufferKind::normal, kMostBufferBytes + 4096, digest(), "memory", "a test"),
        ContractError);
}

TEST_F(CardTest, NamesWhatItHasNoRoomFor) {
    const auto refusal = [&](BufferKind kind, std::size_t bytes) {
        return message_of<XrtError>(
            [&] { card.allocate(kind, bytes, digest(), "memory", "the purpose"); });
    };
    const CardBuffer other = random_buffer(card, BufferKind::normal);
    EXPECT_THAT(refusal(BufferKind::peer_to_peer, kMostBufferBytes),
                AllOf(HasSubstr("0000:e0:00.1"), HasSubstr("the purpose")))
        << "the other one has some of the 4 GiB";
    plan_faults("no_p2p=0:1,no_memory=0:1");
    EXPECT_THAT(refusal(BufferKind::peer_to_peer, kBytes), HasSubstr("the purpose"));
    EXPECT_THAT(refusal(BufferKind::normal, kBytes), HasSubstr("the purpose"));
    EXPECT_NO_THROW(random_buffer(card, BufferKind::normal));
}

TEST_F(CardTest, IsGivenUpAfterATimeOutAndSaysSoAtOnce) {
    Card hanging({.card = "1",
                  .xclbin = csd::emulated_xclbin(),
                  .longest_run = std::chrono::milliseconds(300)});
    plan_faults("lost_completion=1:1");
    const CardBuffer buffer = random_buffer(hanging, BufferKind::peer_to_peer);
    const std::string reason = message_of<XrtError>([&] { digest_of(hanging, buffer); });
    EXPECT_THAT(reason, AllOf(HasSubstr("time-out"), HasSubstr("nearstep_digest (to test)"),
                              HasSubstr("exchange.timeout_s")));
    EXPECT_EQ(message_of<XrtError>([&] { digest_of(hanging, buffer); }), reason);
    EXPECT_EQ(digest_of(card, random_buffer(card, BufferKind::peer_to_peer)), xxh3(buffer.host()))
        << "other cards go on";
}

TEST(CardFilesTest, RefuseABufferInABankThatItsPortIsNotConnectedTo) {
    const ScratchFolder folder;
    emulator::CardDescription two;
    std::vector<Argument> moved(digest().arguments, digest().arguments + digest().count);
    moved[0].bank = "other";
    two.kernels = {{updater(), 1}, {{digest().name, moved.data(), moved.size()}, 1}};
    two.banks = {{.base = 0x4000000000, .bytes = 1ULL << 28U},
                 {.name = "other", .base = 0x5000000000, .bytes = 1ULL << 28U}};
    Card card({.card = "2", .xclbin = csd::write_xclbin(folder, two)});
    const CardBuffer buffer =
        card.allocate(BufferKind::normal, kBytes, updater(), "master_in", "a test");
    fpga::KernelRun run = card.make_run(digest());
    EXPECT_THAT(message_of<XrtError>([&] { run.set("memory", buffer); }),
                AllOf(HasSubstr("bank 0"), HasSubstr("bank 1")));
    const CardBuffer right = random_buffer(card, BufferKind::peer_to_peer);
    EXPECT_EQ(digest_of(card, right), xxh3(right.host()));
}

TEST(CardFilesTest, RefuseKernelsOfAnotherProgram) {
    const ScratchFolder folder;
    const auto refusal = [&](const emulator::CardDescription& kernels) {
        const CardSettings settings{.card = "3", .xclbin = csd::write_xclbin(folder, kernels)};
        return message_of<ConfigError>([&] { Card card(settings); });
    };
    emulator::CardDescription other;
    other.kernels = {{updater(), 1}};
    EXPECT_THAT(refusal(other), states("nearstep_digest"));
    other.kernels.push_back({{digest().name, digest().arguments, 3}, 1});
    EXPECT_THAT(refusal(other), HasSubstr("3 arguments, not 4"));
    std::vector<Argument> renamed(digest().arguments, digest().arguments + digest().count);
    renamed[3].name = "size";
    other.kernels.back() = {{digest().name, renamed.data(), renamed.size()}, 1};
    EXPECT_THAT(refusal(other), HasSubstr("argument 3 is size, not bytes"));
}

TEST(InventoryTest, ListsCardsWithTheirReadings) {
    const Card first({.card = "0", .xclbin = csd::emulated_xclbin()});
    plan_faults("temperature=2:91");
    const Inventory found = find_cards();
    plan_faults("");
    EXPECT_TRUE(found.is_built);
    EXPECT_EQ(found.obstacle, "");
    const auto emulated = std::ranges::count_if(
        found.cards, [](const CardFacts& card) { return card.shell == "xilinx_u2_emulated"; });
    ASSERT_EQ(emulated, 4);
    EXPECT_EQ(found.cards[2].address, "0000:e0:02.1");
    EXPECT_EQ(found.cards[2].celsius, 91);
    EXPECT_EQ(found.cards[2].ddr_gib, 4);
    EXPECT_EQ(found.cards[2].has_peer_to_peer, true);
    EXPECT_LT(*found.cards[0].celsius, kHotCelsius);
}

}  // namespace
}  // namespace nearstep::fpga
