#include "base/units.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/export.hpp"
#include "checkpoint/h5.hpp"
#include "checkpoint/index.hpp"
#include "checkpoint/sample.hpp"
#include "support/test.hpp"

namespace nearstep::checkpoint {
namespace {

using shard::kTileElems;

using DamagedCheckpoint = InFolder;

TEST_F(DamagedCheckpoint, NamesTheFileThatCannotGrowAndKeepsTheOldOne) {
    const std::string old = write_checkpoint(folder(), 10, 1);
    with_file_limit(1 << 20, [&] {
        EXPECT_THAT(message_of<IoError>([&] { write_rank_files(folder(), 20, 0, 2); }),
                    AllOf(HasSubstr("step-00000020.attempt-0.rank-00000.h5 (File too large)"),
                          HasSubstr("needs 2.4 MB"), HasSubstr("ulimit -f")));
        EXPECT_THAT(message_of<PathError>(
                        [&] { export_checkpoint(old, root() + "/model.h5", Dtype::fp32); }),
                    AllOf(HasSubstr("model.h5 (File too large)"), HasSubstr("needs 1.6 MB")));
        EXPECT_THAT(message_of<PathError>([&] {
                        export_safetensors(old, root() + "/model", Dtype::fp32, MiB * 5, {});
                    }),
                    AllOf(HasSubstr("model.safetensors (File too large)"), HasSubstr("needs ")));
    });
    EXPECT_FALSE(fs::exists(root() + "/model.h5.partial"));
    EXPECT_FALSE(fs::exists(root() + "/model.partial"));
    EXPECT_EQ(find_all(folder()).at(0), old);
    expect_values(*Reader::open(write_checkpoint(folder(), 20, 3)), {0, kTiles}, 3);
}

TEST_F(DamagedCheckpoint, NamesAMissingRankFile) {
    const std::string index = write_checkpoint(folder(), 20, 1);
    const std::string gone = folder() + "/step-00000020.attempt-0.rank-00001.h5";
    fs::remove(gone);
    EXPECT_THAT(message_of([&] { Reader::open(index); }), HasSubstr(gone));
}

TEST_F(DamagedCheckpoint, NamesATruncatedRankFile) {
    const std::string index = write_checkpoint(folder(), 20, 1);
    const std::string cut = folder() + "/step-00000020.attempt-0.rank-00002.h5";
    fs::resize_file(cut, fs::file_size(cut) - 1);
    EXPECT_THAT(message_of([&] { Reader::open(index); }),
                AllOf(HasSubstr(cut), HasSubstr("bytes")));
}

TEST_F(DamagedCheckpoint, NamesARankFileOfAnotherRun) {
    const std::string index = write_checkpoint(folder(), 20, 1);
    const std::string other = root() + "/other";
    write_checkpoint(other, 20, 2);
    const std::string swapped = "/step-00000020.attempt-0.rank-00002.h5";
    fs::copy_file(other + swapped, folder() + swapped, fs::copy_options::overwrite_existing);
    EXPECT_THAT(message_of([&] { Reader::open(index); }),
                AllOf(HasSubstr(swapped), HasSubstr("checksums")));
}

TEST_F(DamagedCheckpoint, NamesTheFileAndTileOfAFlippedByte) {
    const std::string index = write_checkpoint(folder(), 20, 1);
    const std::string path = folder() + "/step-00000020.attempt-0.rank-00000.h5";
    const auto values = sample_values(1, 1);
    const std::string needle(reinterpret_cast<const char*>(values.data() + 4 * kTileElems + 5), 32);
    const std::size_t at = bytes_of(path).find(needle);
    ASSERT_NE(at, std::string::npos);
    flip_bit(path, at + 3);
    const auto reader = Reader::open(index);
    expect_values(*reader, {0, 4}, 1);
    expect_values(*reader, {5, kTiles}, 1);
    EXPECT_THAT(message_of([&] {
                    read_tiles(*reader, {0, kTiles});
                }),
                AllOf(HasSubstr(path), HasSubstr("tile 4 of moment1")));
}

TEST_F(DamagedCheckpoint, NoticesAFlippedByteAnywhereInTheIndex) {
    const std::string index = write_checkpoint(folder(), 20, 1);
    const std::string good = bytes_of(index);
    ASSERT_GT(good.size(), 1000U);
    for (std::size_t at = 0; at < good.size(); at += 97) {
        flip_bit(index, at);
        EXPECT_THAT(message_of([&] { Reader::open(index); }), HasSubstr(index)) << "byte " << at;
        put_bytes(index, good);
    }
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{40}, std::size_t{512}, good.size() - 1}) {
        fs::resize_file(index, bytes);
        EXPECT_THAT(message_of([&] { Reader::open(index); }), HasSubstr(index))
            << bytes << " bytes";
        put_bytes(index, good);
    }
    expect_values(*Reader::open(index), {0, kTiles}, 1);
}

// The index has a correct checksum, so only its contents can show the fault.
TEST_F(DamagedCheckpoint, NamesAnIndexThatNoRunHasWritten) {
    const std::string path = write_checkpoint(folder(), 20, 1);
    const Index good = read_index(path);
    const auto complaint_of = [&](const Index& index) {
        fs::remove(path);
        write_index(path, index);
        return message_of([&] { Reader::open(path); });
    };
    Index index = good;
    index.description.parameters = std::size_t{1} << 60U;
    EXPECT_THAT(complaint_of(index), AllOf(HasSubstr(path), HasSubstr("tiles")));
    index = good;
    index.records[1].file_bytes = 4096;
    EXPECT_THAT(complaint_of(index), AllOf(HasSubstr(path), HasSubstr("rank 1")));
    index = good;
    index.files[0] = "../" + index.files[0];
    EXPECT_THAT(complaint_of(index), AllOf(HasSubstr(path), HasSubstr("rank 0")));
    index = good;
    std::swap(index.ranges[1], index.ranges[3]);
    std::swap(index.files[1], index.files[3]);
    EXPECT_THAT(complaint_of(index), HasSubstr(path));
    for (const std::int64_t dimension : {-1, 0, 1 << 30}) {
        index = good;
        index.description.tensors[0].shape = {dimension, 1 << 30, 1 << 30, 1 << 30};
        EXPECT_THAT(complaint_of(index), AllOf(HasSubstr(path), HasSubstr("tensor")));
    }
}

TEST_F(DamagedCheckpoint, NamesAnIndexThatIsMissingOrOfAnotherFormat) {
    EXPECT_THAT(message_of([&] { Reader::open(root() + "/none.h5"); }), HasSubstr("/none.h5"));
    EXPECT_THAT(message_of([&] { Reader::open(root()); }), HasSubstr(root()));
    const std::string foreign = root() + "/foreign.h5";
    h5::close_file(h5::create_file(foreign, 0), foreign);
    EXPECT_THAT(message_of([&] { Reader::open(foreign); }), states(foreign, "index"));
    const std::string index = write_checkpoint(folder(), 20, 1);
    std::string later = bytes_of(index);
    later.replace(later.find("version 1"), 9, "version 2");
    put_bytes(index, later);
    EXPECT_THAT(message_of([&] { Reader::open(index); }),
                AllOf(HasSubstr(index), HasSubstr("has version 2 of")));
}

}  // namespace
}  // namespace nearstep::checkpoint
