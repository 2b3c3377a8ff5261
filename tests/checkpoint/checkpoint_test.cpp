// Tests that checkpoints are written, found and read back bit for bit.
#include "checkpoint/checkpoint.hpp"

#include "checkpoint/rank_file.hpp"
#include "checkpoint/sample_checkpoint.hpp"
#include "support/places.hpp"
#include "support/test.hpp"

namespace nearstep::checkpoint {
namespace {

using shard::kTileElems;
using shard::TileRange;
using testing::UnorderedElementsAre;

using Checkpoint = InFolder;

TEST_F(Checkpoint, ReadsBackWholeAndInPiecesBitForBit) {
    const std::string index = write_checkpoint(folder(), 20, 1);
    EXPECT_EQ(index, folder() + "/step-00000020.h5");
    const auto reader = Reader::open(index);
    expect_values(*reader, {0, kTiles}, 1);
    for (std::size_t begin = 0; begin < kTiles; ++begin) {
        for (std::size_t end = begin + 1; end <= kTiles; end += 2) {
            expect_values(*reader, {begin, end}, 1);
        }
    }
}

TEST_F(Checkpoint, ReadsMastersAlone) {
    const auto reader = Reader::open(write_checkpoint(folder(), 20, 1));
    std::vector<float> master(3 * kTileElems);
    const std::vector<float> all = sample_values(1, 0);
    reader->read({1, 4}, {.master = master, .moment1 = {}, .moment2 = {}});
    EXPECT_TRUE(same_bits(master, std::span(all).subspan(kTileElems, 3 * kTileElems)));
}

TEST_F(Checkpoint, KeepsItsDescription) {
    const auto reader = Reader::open(write_checkpoint(folder(), 20, 1));
    const Description& read = reader->description();
    const Description written = sample_description(20);
    EXPECT_EQ(read.step, written.step);
    EXPECT_EQ(read.generation, written.generation);
    EXPECT_EQ(read.loss_scale, written.loss_scale);
    EXPECT_EQ(read.good_steps, written.good_steps);
    EXPECT_EQ(read.norm, written.norm);
    EXPECT_EQ(read.missed, written.missed);
    EXPECT_EQ(read.seed, written.seed);
    EXPECT_EQ(read.config, written.config);
    EXPECT_EQ(read.model, written.model);
    EXPECT_EQ(read.run, written.run);
    EXPECT_EQ(read.parents, written.parents);
    EXPECT_EQ(read.data, written.data);
    EXPECT_EQ(read.dtype, written.dtype);
    EXPECT_EQ(read.threads, written.threads);
    EXPECT_EQ(read.commit, written.commit);
    EXPECT_EQ(read.site, written.site);
    EXPECT_EQ(read.parameters, written.parameters);
    ASSERT_EQ(read.tensors.size(), written.tensors.size());
    for (std::size_t i = 0; i < read.tensors.size(); ++i) {
        EXPECT_EQ(read.tensors[i].name, written.tensors[i].name);
        EXPECT_EQ(read.tensors[i].shape, written.tensors[i].shape);
        EXPECT_EQ(read.tensors[i].offset, written.tensors[i].offset);
    }
}

TEST_F(Checkpoint, CanBeMovedWithItsFolder) {
    write_checkpoint(folder(), 20, 1);
    fs::rename(folder(), root() + "/moved");
    expect_values(*Reader::open(root() + "/moved/step-00000020.h5"), {0, kTiles}, 1);
}

TEST_F(Checkpoint, FindsNoneInAMissingOrEmptyFolder) {
    EXPECT_THAT(find_all(folder()), testing::IsEmpty());
    fs::create_directories(folder());
    EXPECT_THAT(find_all(folder()), testing::IsEmpty());
}

TEST_F(Checkpoint, FindsTheNewestIndexAndNothingElse) {
    write_checkpoint(folder(), 9, 1);
    for (const char* name :
         {"step-00000011.h5.partial", "step-00000012.attempt-0.rank-00000.h5", "step-13.h5",
          "step-00000014.h5.bak", "step-00000015", "step-.h5", "step-000000016.h5", "export.h5"}) {
        put_bytes(folder() + "/" + name, "no index");
    }
    EXPECT_EQ(find_all(folder()).at(0), folder() + "/step-00000009.h5");
    put_bytes(folder() + "/step-00000010.h5", "by its name an index");
    EXPECT_EQ(find_all(folder()).at(0), folder() + "/step-00000010.h5");
    put_bytes(folder() + "/step-123456789.h5", "by its name an index");
    EXPECT_EQ(find_all(folder()).at(0), folder() + "/step-123456789.h5");
}

TEST_F(Checkpoint, RemovesOlderOnesAndTheLeftoversOfCrashes) {
    write_checkpoint(folder(), 10, 1);
    write_rank_files(folder(), 15, 0, 1);
    write_rank_files(folder(), 20, 0, 1);
    const std::string rank_file = bytes_of(folder() + "/step-00000015.attempt-0.rank-00001.h5");
    for (const auto& [name, bytes] : std::map<std::string, std::string>{
             {"step-00000010.h5.partial", ""},
             {"step-00000020.h5.partial", std::string(512, '\0') + "begun"},
             {"step-00000016.attempt-0.rank-00000.h5", rank_file.substr(0, rank_file.size() / 2)},
             {"step-00000017.attempt-0.rank-00000.h5", ""},
             {"notes.txt", "left over"},
             {"step-00000010.extra.json", R"({"nearstep_run": "0", "extra": 1})"},
             {"step-00000011.extra.json", R"({"somebody": "else's"})"},
             {"step-00000020.extra.json", R"({"nearstep_run": "0", "extra": 2})"},
             {"step-00000030.attempt-0.rank-00000.h5", rank_file}}) {
        put_bytes(folder() + "/" + name, bytes);
    }
    write_checkpoint(folder(), 20, 2);
    EXPECT_THAT(files(),
                UnorderedElementsAre("step-00000020.h5", "step-00000020.attempt-1.rank-00000.h5",
                                     "step-00000020.attempt-1.rank-00001.h5",
                                     "step-00000020.attempt-1.rank-00002.h5",
                                     "step-00000020.attempt-1.rank-00003.h5", "notes.txt",
                                     "step-00000011.extra.json", "step-00000020.extra.json",
                                     "step-00000030.attempt-0.rank-00000.h5"));
    expect_values(*Reader::open(find_all(folder()).at(0)), {0, kTiles}, 2);
}

TEST_F(Checkpoint, LeavesWhatNearstepHasNotMadeWhateverItsName) {
    write_checkpoint(folder(), 10, 1);
    const std::vector<std::string> foreign = {"step-00000005.h5", "step-00000010.h5.partial",
                                              "step-00000006.attempt-0.rank-00000.h5"};
    for (const std::string& name : foreign) {
        put_bytes(folder() + "/" + name, "my own notes");
    }
    write_checkpoint(folder(), 20, 2);
    EXPECT_FALSE(fs::exists(folder() + "/step-00000010.h5"));
    for (const std::string& name : foreign) {
        EXPECT_EQ(bytes_of(folder() + "/" + name), "my own notes");
    }
}

// Others may be able to put links into the folder, and a FIFO must not make a run wait.
TEST_F(Checkpoint, LeavesLinksAndFifosAlone) {
    write_checkpoint(folder(), 10, 1);
    const std::string rank_file = bytes_of(folder() + "/step-00000010.attempt-0.rank-00001.h5");
    put_bytes(root() + "/copy.h5", rank_file);
    fs::create_symlink(root() + "/copy.h5", folder() + "/step-00000005.attempt-0.rank-00000.h5");
    fs::create_hard_link(root() + "/copy.h5", folder() + "/step-00000006.attempt-0.rank-00000.h5");
    ASSERT_EQ(::mkfifo((folder() + "/step-00000007.attempt-0.rank-00000.h5").c_str(), 0600), 0);
    ASSERT_EQ(::mkfifo((folder() + "/step-00000008.h5").c_str(), 0600), 0);
    write_checkpoint(folder(), 20, 2);
    EXPECT_FALSE(fs::exists(folder() + "/step-00000010.h5"));
    for (const char* name :
         {"step-00000005.attempt-0.rank-00000.h5", "step-00000006.attempt-0.rank-00000.h5",
          "step-00000007.attempt-0.rank-00000.h5", "step-00000008.h5"}) {
        EXPECT_TRUE(fs::exists(fs::symlink_status(folder() + "/" + name))) << name;
    }
    EXPECT_EQ(bytes_of(root() + "/copy.h5"), rank_file);
}

TEST_F(Checkpoint, IsNotPublishedUnlessEveryFileIsSeenAsItWasWritten) {
    const std::string old = write_checkpoint(folder(), 10, 1);
    const auto records = write_rank_files(folder(), 20, 0, 2);
    const std::string file = folder() + "/step-00000020.attempt-0.rank-00001.h5";
    const std::string good = bytes_of(file);
    const auto refusal = [&] {
        return message_of<IoError>(
            [&] { publish(folder(), sample_description(20), 0, sample_ranges(), records); });
    };
    fs::remove(file);  // as if the folder were local to that rank's host
    EXPECT_THAT(refusal(), AllOf(HasSubstr("not published"), HasSubstr(file)));
    put_bytes(file, good.substr(0, good.size() - 1000));
    EXPECT_THAT(refusal(), HasSubstr(file));
    put_bytes(file, std::string(good.size(), 'x'));
    EXPECT_THAT(refusal(), HasSubstr(file));
    EXPECT_EQ(find_all(folder()).at(0), old);
    expect_values(*Reader::open(old), {0, kTiles}, 1);
    put_bytes(file, good);
    EXPECT_NE(publish(folder(), sample_description(20), 0, sample_ranges(), records), old);
    EXPECT_FALSE(fs::exists(old));
}

TEST_F(Checkpoint, StaysCompleteUntilTheNextOneIsPublished) {
    const std::string old = write_checkpoint(folder(), 10, 1);
    const auto records = write_rank_files(folder(), 20, 0, 2);
    ASSERT_EQ(find_all(folder()).at(0), old);
    expect_values(*Reader::open(old), {0, kTiles}, 1);
    const std::string index =
        publish(folder(), sample_description(20), 0, sample_ranges(), records);
    EXPECT_EQ(find_all(folder()).at(0), index);
    EXPECT_FALSE(fs::exists(old));
    expect_values(*Reader::open(index), {0, kTiles}, 2);
}

TEST_F(Checkpoint, OfTheSameStepStaysCompleteUntilItIsReplaced) {
    const std::string index = write_checkpoint(folder(), 20, 1);
    ASSERT_EQ(next_attempt(folder(), 20), 1);
    const auto records = write_rank_files(folder(), 20, 1, 2);
    expect_values(*Reader::open(index), {0, kTiles}, 1);
    publish(folder(), sample_description(20), 1, sample_ranges(), records);
    expect_values(*Reader::open(index), {0, kTiles}, 2);
    EXPECT_EQ(files().size(), 1 + sample_ranges().size());
}

TEST_F(Checkpoint, NeverReplacesARankFile) {
    write_checkpoint(folder(), 20, 1);
    EXPECT_THAT(message_of<IoError>([&] {
                    RankFileWriter::make(folder(), 20, 0, 1, {{0, 1}});
                }),
                HasSubstr("step-00000020.attempt-0.rank-00001.h5"));
}

TEST_F(Checkpoint, NeedsAFolderThatCanBeWritten) {
    put_bytes(root() + "/file", "not a folder");
    EXPECT_THAT(message_of([&] {
                    RankFileWriter::make(root() + "/file/below", 1, 0, 0, {{0, 1}});
                }),
                HasSubstr(root() + "/file/below"));
    EXPECT_THAT(message_of([&] { find_all(root() + "/file"); }), HasSubstr(root() + "/file"));
}

TEST_F(Checkpoint, TellsADiskThatFailsFromAFileThatIsDamaged) {
    const auto read_with = [](const std::string& reason, int code) {
        report_damage_in("the/file", [&] { throw Hdf5Error(reason, code); });
    };
    EXPECT_THAT(message_of<IoError>([&] { read_with("HDF5 cannot read data.", EIO); }),
                HasSubstr("the/file (Input/output error)"));
    EXPECT_THAT(message_of([&] { read_with("HDF5 cannot read data: bad object header.", 0); }),
                HasSubstr("the/file is damaged"));
}

TEST_F(Checkpoint, HoldsEveryTileOnce) {
    const std::vector<RankFileRecord> records(2);
    const auto publish_with = [&](const std::vector<std::vector<TileRange>>& ranges) {
        publish(folder(), sample_description(20), 0, ranges, records);
    };
    EXPECT_THROW(publish_with({{{0, 3}}, {{4, 7}}}), ContractError);
    EXPECT_THROW(publish_with({{{0, 4}}, {{3, 7}}}), ContractError);
    EXPECT_THROW(publish_with({{{0, 3}}, {{3, 6}}}), ContractError);
    EXPECT_THAT(find_all(folder()), testing::IsEmpty());
}

TEST_F(Checkpoint, ChecksWhatIsWrittenToARankFile) {
    const std::vector<float> tile(kTileElems);
    const StateView state{.master = tile, .moment1 = tile, .moment2 = tile};
    const auto writer = RankFileWriter::make(folder(), 20, 0, 0, {{0, 1}, {3, 4}});
    writer->write({0, 1}, state);
    EXPECT_THROW(writer->write({0, 1}, state), ContractError);
    EXPECT_THROW(writer->write({1, 2}, state), ContractError);
    EXPECT_THROW(writer->write({3, 5}, state), ContractError);
    EXPECT_THROW(writer->finish(), ContractError);
    writer->write({3, 4}, state);
    writer->finish();
    EXPECT_THROW(RankFileWriter::make(folder(), 20, 1, 0, {{3, 4}, {0, 1}}), ContractError);
}

TEST_F(Checkpoint, MapsManyRanges) {
    constexpr std::size_t kMany = 200;
    std::vector<std::vector<TileRange>> ranges(100);
    const std::vector<float> tile(kTileElems, 0.25F);
    for (std::size_t i = 0; i < kMany; ++i) {
        ranges[i % ranges.size()].push_back({i, i + 1});
    }
    std::vector<RankFileRecord> records;
    for (std::size_t rank = 0; rank < ranges.size(); ++rank) {
        const auto writer =
            RankFileWriter::make(folder(), 1, 0, static_cast<int>(rank), ranges[rank]);
        for (const TileRange& range : ranges[rank]) {
            writer->write(range, {.master = tile, .moment1 = tile, .moment2 = tile});
        }
        records.push_back(writer->finish());
    }
    Description description = sample_description(1);
    description.parameters = kMany * kTileElems;
    const auto reader = Reader::open(publish(folder(), description, 0, ranges, records));
    for (std::size_t first = 0; first < kMany; first += 50) {
        const State state = read_tiles(*reader, {first, first + 50});
        EXPECT_EQ(std::count(state.moment2.begin(), state.moment2.end(), 0.25F),
                  static_cast<std::ptrdiff_t>(50 * kTileElems));
    }
}

TEST_F(Checkpoint, IsReadByH5py) {
    const std::string index = write_checkpoint(folder(), 20, 1);
    const std::string script = test::source_file("tests/checkpoint/read_index.py");
    for (const std::uint64_t array : {0U, 1U, 2U}) {
        const auto values = sample_values(1, array);
        put_bytes(text(root(), "/array-", array),
                  {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
    }
    if (!has_h5py()) {
        GTEST_SKIP() << test::kPython << " has no h5py";
    }
    EXPECT_EQ(run_python(text(script, " ", index, " ", root(), "/array-0 ", root(), "/array-1 ",
                              root(), "/array-2")),
              0);
}

}  // namespace
}  // namespace nearstep::checkpoint
