// Tests that a row of nearstep bench notices wrong state and removes its files.
#include "bench/csd_row.hpp"

#include "csd/state_layout.hpp"
#include "support/test.hpp"

namespace nearstep::bench {
namespace {

// Seven tiles in subgroups of at most two.
struct SmallScene {
    SmallScene() : codec(codec::make_codec({})) {
        scene.folder = folder.path();
        scene.parameters = 7 * shard::kTileElems;
        scene.subgroup_tiles = 2;
        scene.codec = codec.get();
        scene.vector = memory::Buffer(scene.parameters * 2);
    }

    ScratchFolder folder;
    std::unique_ptr<codec::Codec> codec;
    CsdScene scene;
};

class RowWith : public testing::TestWithParam<store::IoKind> {};

TEST_P(RowWith, ProvesItsStateAfterEveryNumberOfSteps) {
    for (const bool is_raw : {false, true}) {
        for (const int devices : {1, 3, 9}) {
            SmallScene small;
            const CsdRowSettings settings = {.name = "row",
                                             .devices = devices,
                                             .is_raw = is_raw,
                                             .is_durable = true,
                                             .io = GetParam()};
            CsdRow row(settings, small.scene);
            EXPECT_GT(row.run(1), 0);
            EXPECT_GT(row.verify(), 0U);
            row.run(2);
            EXPECT_GE(row.verify(), static_cast<std::size_t>(std::min(devices, 7)));
            std::size_t bytes = 0;
            for (const auto& entry : std::filesystem::directory_iterator(small.folder.path())) {
                bytes += entry.file_size();
            }
            EXPECT_EQ(bytes, CsdRow::storage_bytes(settings, small.scene));
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Io, RowWith,
                         testing::Values(store::IoKind::io_uring, store::IoKind::threads));

// Offset of the masters of the first subgroup, which has two tiles, at an odd generation.
std::int64_t first_masters() {
    const csd::StateLayout layout({{0, 0, {0, 2}}}, csd::StateFormat::fp32, false);
    return layout.extent_offset(0, 1) + static_cast<std::int64_t>(store::kHeaderBytes);
}

TEST(CsdRowTest, SeesOneWrongBitInWhatNoChecksumGuards) {
    SmallScene small;
    for (const bool is_raw : {false, true}) {
        CsdRow row({.name = "row", .is_raw = is_raw, .digest = store::PayloadDigest::absent},
                   small.scene);
        row.run(1);
        EXPECT_NO_THROW(row.verify());
        flip_bit(small.folder.file("row.device-0.state"), first_masters() + 77);
        EXPECT_THAT(message_of<Error>([&] { row.verify(); }),
                    states("state", "subgroup 0", "bench row device 0", 1));
    }
}

TEST(CsdRowTest, SeesParametersThatAreNotItsMasters) {
    SmallScene small;
    CsdRow row({.name = "row"}, small.scene);
    row.run(1);
    small.scene.vector.span()[100] ^= std::byte{1};
    EXPECT_THAT(message_of<Error>([&] { row.verify(); }), states("parameters", "subgroup 0"));
}

TEST(CsdRowTest, TakesItsFilesAway) {
    SmallScene small;
    {
        const CsdRow row({.name = "row", .devices = 2}, small.scene);
        EXPECT_FALSE(std::filesystem::is_empty(small.folder.path()));
    }
    EXPECT_TRUE(std::filesystem::is_empty(small.folder.path()));
}

}  // namespace
}  // namespace nearstep::bench
