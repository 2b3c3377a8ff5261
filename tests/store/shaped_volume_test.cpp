// Tests that a volume on shaped links takes their time.
#include "memory/buffer.hpp"
#include "shaping/fake_clock.hpp"
#include "store/volume.hpp"
#include "support/test.hpp"

namespace nearstep::store {
namespace {

constexpr std::size_t kBytes = 64 * kPageBytes;

// A volume whose files are each read at 4 GB/s and written at 1 GB/s.
struct ShapedVolume {
    explicit ShapedVolume(int count) {
        VolumeSettings settings;
        settings.bytes = kBytes;
        settings.chunk_bytes = kPageBytes;
        settings.pacer = &links.pacer();
        for (int file = 0; file < count; ++file) {
            settings.files.push_back(folder.file("state-" + std::to_string(file)));
            settings.paths.push_back(links.add_drive(shaping::DrivePlace::near_engine));
        }
        volume = std::make_unique<Volume>(settings);
        volume->reserve();
    }

    // Nanoseconds since the last call.
    shaping::Time lap() { return clock.now() - std::exchange(last, clock.now()); }

    ScratchFolder folder;
    shaping::FakeClock clock;
    shaping::NodeLinks links{{.device_read = 4e9, .device_write = 1e9},
                             memory::Buffer(shaping::NodeLinks::kTimesBytes),
                             clock};
    std::unique_ptr<Volume> volume;
    memory::Buffer memory{kBytes};
    shaping::Time last = clock.now();
};

TEST(AShapedVolume, TakesAsLongAsItsLinks) {
    ShapedVolume shaped(1);
    shaped.volume->write(shaped.memory.span(), 0).wait();
    EXPECT_EQ(shaped.lap(), static_cast<shaping::Time>(kBytes));
    shaped.volume->read(shaped.memory.span(), 0).wait();
    EXPECT_EQ(shaped.lap(), static_cast<shaping::Time>(kBytes / 4));
}

TEST(AShapedVolume, MovesTheBytesAllTheSame) {
    ShapedVolume shaped(3);
    std::ranges::fill(shaped.memory.span(), std::byte{7});
    shaped.volume->write(shaped.memory.span(), 0).wait();
    memory::Buffer seen(kBytes);
    shaped.volume->read(seen.span(), 0).wait();
    EXPECT_TRUE(std::ranges::equal(seen.span(), shaped.memory.span()));
}

TEST(AShapedVolume, UsesTheLinksOfAllItsFilesAtOnce) {
    ShapedVolume shaped(4);
    shaped.volume->write(shaped.memory.span(), 0).wait();
    EXPECT_EQ(shaped.lap(), static_cast<shaping::Time>(kBytes / 4));
}

TEST(AShapedVolume, ServesTransfersOfAFileOneBehindTheOther) {
    ShapedVolume shaped(1);
    Ticket all;
    for (int i = 0; i < 3; ++i) {
        all.add(shaped.volume->write(shaped.memory.span(), 0));
    }
    all.wait();
    EXPECT_EQ(shaped.lap(), static_cast<shaping::Time>(3 * kBytes));
}

TEST(AShapedVolume, DelaysNothingOutsideOfAStep) {
    ShapedVolume shaped(2);
    shaped.volume->write(shaped.memory.span(), 0, Speed::full).wait();
    shaped.volume->read(shaped.memory.span(), 0, Speed::full).wait();
    EXPECT_EQ(shaped.lap(), 0);
}

TEST(AVolume, CountsWhatItWritesToEachFile) {
    ShapedVolume shaped(2);
    EXPECT_THAT(shaped.volume->written_bytes(), testing::ElementsAre(0, 0));
    shaped.volume->write(shaped.memory.span().first(3 * kPageBytes), 0).wait();
    shaped.volume->read(shaped.memory.span(), 0).wait();
    EXPECT_THAT(shaped.volume->written_bytes(),
                testing::ElementsAre(2 * kPageBytes, 1 * kPageBytes));
}

}  // namespace
}  // namespace nearstep::store
