// Stored state: reading it back, damage, and its files.
#include "csd/cpu_device.hpp"
#include "csd/device_fixture.hpp"
#include "store/storage.hpp"
#include "support/test.hpp"

#include <fstream>
#include <functional>
#include <utility>

namespace nearstep::csd {
namespace {

std::int64_t file_offset(std::size_t subgroup, std::int64_t generation, std::size_t in_payload) {
    // docs/formats/state-file.md: two extents per subgroup, each with a 4096-byte header and 12
    // bytes per parameter.
    constexpr std::size_t kTileState = std::size_t{12} * 65536;
    std::size_t offset = 0;
    const std::vector<shard::Subgroup> subgroups = small_subgroups();
    for (std::size_t s = 0; s < subgroup; ++s) {
        offset += 2 * (4096 + kTileState * subgroups[s].tiles.size());
    }
    offset += static_cast<std::size_t>(generation % 2) *
              (4096 + kTileState * subgroups[subgroup].tiles.size());
    return static_cast<std::int64_t>(offset + 4096 + in_payload);
}

State random_state(std::size_t tiles, std::uint64_t seed) {
    State state(tiles);
    for (std::size_t i = 0; i < state.master.size(); ++i) {
        state.master[i] = static_cast<float>(random_normal(seed, 0, i));
        state.moment1[i] = static_cast<float>(random_normal(seed, 1, i));
        state.moment2[i] = static_cast<float>(random_normal(seed, 2, i));
    }
    return state;
}

// More threads than concurrent calls. Each has its own subgroup, except the last two, which read
// one that nobody writes.
TEST(StoredStateTest, SeveralThreadsWriteAndReadAtOnce) {
    SmallDevice small({});
    constexpr std::array<std::size_t, 5> kSubgroups = {0, 1, 2, 2, 2};
    std::vector<State> states;
    for (const std::size_t subgroup : kSubgroups) {
        states.push_back(random_state(small_subgroups()[subgroup].tiles.size(), subgroup));
        small.device->write_state(subgroup, 0, states.back().arrays());
    }
    std::array<bool, kSubgroups.size()> is_same{};
    {
        std::vector<std::jthread> threads;
        for (std::size_t i = 0; i < kSubgroups.size(); ++i) {
            threads.emplace_back([&, i] {
                is_same.at(i) = true;
                for (int round = 0; round < 5; ++round) {
                    const int generation = i < 3 ? 1 : 0;
                    if (generation == 1) {
                        small.device->write_state(kSubgroups.at(i), 1, states[i].arrays());
                    }
                    State seen(small_subgroups()[kSubgroups.at(i)].tiles.size());
                    small.device->read_state(kSubgroups.at(i), generation, seen.arrays());
                    is_same.at(i) = is_same.at(i) && seen == states[i];
                }
            });
        }
    }
    EXPECT_THAT(is_same, testing::Each(true));
}

// On a drive, mapped, with places that subgroups share, and cached. The memory that the caller
// gives has other content, which does not get behind the arrays.
TEST(StoredStateTest, StoresTheBytesOfAPayload) {
    const std::array<SmallDeviceSettings, 5> all = {{{},
                                                     {.parent = "/dev/shm/"},
                                                     {.spare = 2, .parent = "/dev/shm/"},
                                                     {.spare = 2},
                                                     {.spare = 3, .logs = 2}}};
    for (SmallDeviceSettings wanted : all) {
        wanted.state = StateFormat::compact;
        SmallDevice small(wanted);
        memory::Buffer memory(MiB);
        for (std::size_t s = 0; s < small.settings.subgroups.size(); ++s) {
            const std::size_t tiles = small.settings.subgroups[s].tiles.size();
            State state = random_state(tiles, s);
            std::ranges::transform(state.moment2, state.moment2.begin(),
                                   [](float value) { return std::abs(value); });
            std::ranges::fill(memory.span(), std::byte{255});
            const auto payload = small.device->room_for(s, 0, memory);
            ASSERT_EQ(payload.size(), state_bytes(wanted.state, tiles));
            if (tiles % 2 != 0) {  // else the arrays end with the last page
                EXPECT_EQ(payload.back(), std::byte{0});
            }
            narrow(wanted.state, state.arrays(), payload);
            small.device->write_stored(s, 0, memory);
            State seen(tiles);
            small.device->read_state(s, 0, seen.arrays());
            widen(wanted.state, payload, state.arrays());
            EXPECT_TRUE(seen == state);
        }
        if (wanted.spare == 0) {
            small.device->allocate_slot(0);
            small.put_gradients(0);
            EXPECT_NO_THROW(update_all(small, 0)) << "an update verifies what was stored";
        }
    }
}

TEST(StoredStateTest, KeepsTheLastGenerationWhole) {
    SmallDevice small({});
    small.initialise();
    small.device->allocate_slot(0);
    std::vector<State> last = small.states(0);
    for (int step = 0; step < 3; ++step) {
        small.put_gradients(step);
        update_all(small, step);
        EXPECT_TRUE(small.states(step) == last);
        last = small.states(step + 1);
    }
    const std::string message = message_of<IoError>([&] { small.states(1); });
    EXPECT_THAT(message, states("generation", 3, 1));
}

TEST(StoredStateTest, RefusesStateThatWasNeverWritten) {
    SmallDevice small({});
    EXPECT_THAT(message_of<IoError>([&] { small.states(0); }), HasSubstr("never written"));
}

// In mapped memory, too, where only what the device itself wrote is not read to be verified.
TEST(StoredStateTest, NamesDeviceSubgroupFileAndOffsetOfADamagedByte) {
    for (const std::string& parent : {testing::TempDir(), std::string("/dev/shm/")}) {
        SmallDevice small({.parent = parent});
        small.initialise();
        small.device->allocate_slot(0);
        flip_bit(small.settings.files[0], file_offset(1, 0, 500'001));
        EXPECT_NO_THROW(small.device->read(0, 0, 0).wait());
        const std::string message =
            message_of<IoError>([&] { small.device->read(0, 1, 0).wait(); });
        EXPECT_THAT(message, HasSubstr("subgroup 1 of device \"device under test\""));
        EXPECT_THAT(message, HasSubstr("offset " + std::to_string(file_offset(1, 0, 0) - 4096)));
        EXPECT_THAT(message, HasSubstr(small.settings.files[0]));
        EXPECT_THAT(message, states("data"));
        State state(3);
        EXPECT_THROW(small.device->read_state(1, 0, state.arrays()), IoError);
    }
}

// Mapped, too.
TEST(StoredStateTest, AFileThatIsCutWhereNoUpdateReadsTakesTheNextGeneration) {
    for (const std::string& parent : {testing::TempDir(), std::string("/dev/shm/")}) {
        SmallDevice small({.parent = parent});
        small.initialise();
        small.device->allocate_slot(0);
        small.put_gradients(0);
        std::filesystem::resize_file(small.settings.files[0],
                                     static_cast<std::uintmax_t>(file_offset(2, 1, 1001)));
        update_all(small, 0);
        EXPECT_NO_THROW(small.states(1));
    }
}

TEST(StoredStateTest, ReservesWhatItAnnounced) {
    for (const int files : {1, 3}) {
        const SmallDevice small({.place = UpdatePlace::on_host, .files = files});
        std::size_t bytes = 0;
        std::size_t announced = 0;
        for (const store::PlannedFile& file : planned_files(small.settings)) {
            bytes += std::filesystem::file_size(file.path);
            announced += file.bytes;
        }
        EXPECT_EQ(bytes, announced);
        EXPECT_GE(bytes, (2 * 12 + 4) * kOwnElems);
    }
}

// With as many groups as there may be. Logs lie in memory beside the state, or on a drive.
TEST(StoredStateTest, LogsKeepToTheRoomThatTheyAnnounced) {
    std::vector<GroupRun> runs;
    for (std::size_t group = 0; group < kMostGroups; ++group) {
        runs.push_back({kParameters * (group + 1) / kMostGroups, group});
    }
    for (const int logs : {1, 3}) {
        HandledDevice small({.codec = "topk",
                             .groups = GroupMap(runs),
                             .spare = 1,
                             .logs = logs,
                             .parent = logs == 1 ? "/dev/shm" : testing::TempDir()});
        small.take_steps(3);
        for (const store::PlannedFile& file : planned_files(small.settings)) {
            if (file.path != small.settings.files.front()) {
                EXPECT_EQ(std::filesystem::file_size(file.path), file.bytes) << file.path;
            }
        }
    }
}

TEST(StoredStateTest, RefusesADeviceThatIsTooLargeBeforeItMakesAFile) {
    const ScratchFolder folder;
    SmallDevice small({});
    DeviceSettings settings = small.settings;
    settings.files = {folder.file("state")};
    settings.subgroups = {{0, 0, {0, std::size_t{1} << 40}}};
    EXPECT_THAT(message_of<ConfigError>([&] { make_cpu_device(settings, small.traffic); }),
                HasSubstr("are needed"));
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(StoredStateTest, RefusesALogByTheKeyOfItsFolder) {
    const ScratchFolder folder;
    SmallDevice small({.spare = 1, .logs = 3});
    DeviceSettings settings = small.settings;
    settings.files = {folder.file("state")};
    const auto refusal = [&](const std::string& log) {
        settings.logs = {folder.file("log-0"), folder.file("log-1"), log};
        return message_of<ConfigError>([&] { make_cpu_device(settings, small.traffic); });
    };
    std::filesystem::create_symlink(small.settings.logs.back(), folder.file("link"));
    EXPECT_THAT(refusal(folder.file("link")), states("The log", "it is a link", "csd.log"));
    std::ofstream(folder.file("plain")) << "no folder";
    EXPECT_THAT(refusal(folder.file("plain/log")), states("csd.log", "plain", "is a file"));
}

TEST(StoredStateTest, SaysHowItsStateMoves) {
    SmallDevice small({.io = store::IoKind::threads});
    EXPECT_THAT(small.device->describe_io(), testing::StartsWith("threads, "));
    EXPECT_THAT(small.device->describe_io(), HasSubstr("0 B of buffers"));
    small.device->allocate_slot(0);
    EXPECT_THAT(small.device->describe_io(), HasSubstr("2.4 MB of buffers of which"));
    EXPECT_THAT(SmallDevice({.io = store::IoKind::io_uring}).device->describe_io(),
                testing::StartsWith("io_uring, "));
}

TEST(StoredStateTest, WithoutDigestsComputesTheSameAndIsRefusedByWhoChecks) {
    SmallDevice checked({});
    SmallDevice unchecked({});
    unchecked.device.reset();
    unchecked.settings.digest = store::PayloadDigest::absent;
    unchecked.device = make_cpu_device(unchecked.settings, unchecked.traffic);
    unchecked.device->reserve();
    for (SmallDevice* small : {&checked, &unchecked}) {
        small->initialise();
        small->device->allocate_slot(0);
        small->put_gradients(0);
        update_all(*small, 0);
    }
    EXPECT_TRUE(unchecked.states(1) == checked.states(1));
    std::vector<std::byte> extent(store::kHeaderBytes + 64, std::byte{1});
    const store::SubgroupHeader header = {.layout = 1, .subgroup = 2, .generation = 3};
    store::seal(header, extent, store::PayloadDigest::absent);
    EXPECT_FALSE(store::find_fault(header, extent, store::PayloadDigest::absent));
    EXPECT_THAT(store::find_fault(header, extent).value_or(""), states("data"));
}

// Calls a function once, as gradients are read from a log.
class InterruptedStorage : public store::Storage {
public:
    ssize_t read(int file, const iovec* pieces, int count, off_t offset) override {
        const std::string path = fs::read_symlink(text("/proc/self/fd/", file));
        if (interrupt && path.find(".log-") != std::string::npos) {
            std::exchange(interrupt, nullptr)();
        }
        return Storage::read(file, pieces, count, offset);
    }

    std::function<void()> interrupt;
};

// A step that was given up is loaded beside the commit of the next one.
TEST(StoredStateTest, RepeatsAnUpdateThatIsForgottenMeanwhile) {
    HandledDevice small({.spare = 1, .logs = 3});
    small.take_steps(4);
    const auto before = small.states(3);
    DeviceSettings settings = small.settings;
    small.handler.reset();
    small.device.reset();
    InterruptedStorage storage;
    settings.storage = &storage;
    small.device = make_cpu_device(settings, small.traffic);
    small.states(4);                     // the cache has these from now on
    EXPECT_EQ(small.states(3), before);  // all updates in the logs are known now
    storage.interrupt = [&] { small.device->accept(4); };
    EXPECT_EQ(small.states(3), before);
    EXPECT_FALSE(storage.interrupt);
}

TEST(StoredStateTest, ShowsTheMastersOfTheStepThatARestartWentBackTo) {
    HandledDevice small({.spare = 1, .logs = 3});
    small.take_steps(4);
    small.handler.reset();
    small.device.reset();
    small.device = make_cpu_device(small.settings, small.traffic);
    small.states(4);  // then another rank lacks step 4
    small.states(3);
    small.device->store_repeated(3).wait();
    for (std::size_t s = 0; s < small.settings.subgroups.size(); ++s) {
        State state(small.settings.subgroups[s].tiles.size());
        small.device->read_state(s, 3, state.arrays());
        const auto shown = small.device->masters_in_memory(s, 3).first(4 * state.master.size());
        EXPECT_EQ(std::memcmp(shown.data(), state.master.data(), shown.size()), 0) << s;
    }
}

}  // namespace
}  // namespace nearstep::csd
