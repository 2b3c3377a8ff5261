// Tests that damaged checkpoints are refused with the name of the file and what is wrong.
#include "base/digest.hpp"
#include "base/random.hpp"
#include "base/units.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/checkpoint_files.hpp"
#include "checkpoint/export.hpp"
#include "checkpoint/h5.hpp"
#include "checkpoint/h5_reader.hpp"
#include "checkpoint/index.hpp"
#include "checkpoint/sample_checkpoint.hpp"
#include "checkpoint/seal.hpp"
#include "support/test.hpp"

#include <sys/stat.h>

#include <array>
#include <cstring>
#include <functional>

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
                        [&] { export_alone(old, root() + "/model.h5", {.dtype = Dtype::fp32}); }),
                    AllOf(HasSubstr("model.h5 (File too large)"), HasSubstr("needs 1.3 MB")));
        EXPECT_THAT(
            message_of<PathError>([&] { export_folder_alone(old, root() + "/model", MiB * 5); }),
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

// The second rank's file with another "master", and an index that knows its size.
class CraftedRankFile : public InFolder {
protected:
    std::string craft(const std::function<void(hid_t)>& make) {
        const std::string path = write_checkpoint(folder(), 20, 1);
        Index index = read_index(path);
        const std::string rank_file = folder() + "/" + index.files[1];
        {
            const h5::File file(H5Fopen(rank_file.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
            h5::check(H5Ldelete(file.get(), "master", H5P_DEFAULT), "remove a dataset");
            make(file.get());
        }
        index.records[1].file_bytes = fs::file_size(rank_file);
        fs::remove(path);
        write_index(path, index);
        return message_of([&] { Reader::open(path); });
    }

    static void make_dataset(hid_t file, const std::function<void(hid_t)>& choose) {
        const h5::Properties creation = h5::make_properties(H5P_DATASET_CREATE);
        choose(creation.get());
        const h5::Space space = h5::make_space(std::vector<hsize_t>{1, kTileElems});
        const h5::Dataset made(h5::check(H5Dcreate2(file, "master", H5T_IEEE_F32LE, space.get(),
                                                    H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                                         "make a dataset"));
    }
};

TEST_F(CraftedRankFile, LeadsToNoOtherFile) {
    // Whoever opens the pipe waits for ever.
    const std::string pipe = root() + "/pipe";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    const auto refused = AllOf(HasSubstr("rank-00001.h5"), HasSubstr("not a file that nearstep"));
    EXPECT_THAT(craft([&](hid_t file) {
                    H5Lcreate_external(pipe.c_str(), "/master", file, "master", H5P_DEFAULT,
                                       H5P_DEFAULT);
                }),
                refused);
    EXPECT_THAT(craft([&](hid_t file) {
                    H5Lcreate_soft("/moment1", file, "master", H5P_DEFAULT, H5P_DEFAULT);
                }),
                refused);
    EXPECT_THAT(craft([&](hid_t file) {
                    make_dataset(file, [&](hid_t creation) {
                        H5Pset_external(creation, pipe.c_str(), 0, kTileElems * sizeof(float));
                    });
                }),
                refused);
    EXPECT_THAT(craft([&](hid_t file) {
                    const h5::Space whole = h5::make_space(std::vector<hsize_t>{1, kTileElems});
                    make_dataset(file, [&](hid_t creation) {
                        H5Pset_virtual(creation, whole.get(), pipe.c_str(), "/master", whole.get());
                    });
                }),
                refused);
    EXPECT_THAT(craft([&](hid_t file) {
                    make_dataset(file, [&](hid_t creation) {
                        const std::array<hsize_t, 2> chunk = {1, 64};
                        H5Pset_chunk(creation, 2, chunk.data());
                    });
                }),
                refused);
}

// Behind a right seal, any change is refused or harmless. The sanitizers watch the reader.
TEST_F(DamagedCheckpoint, IsNoDangerWhateverItsIndexAndRankFilesHold) {
    const std::string index = write_checkpoint(folder(), 20, 1);
    const std::string rank_file = folder() + "/step-00000020.attempt-0.rank-00001.h5";
    const std::array<std::string, 2> paths = {index, rank_file};
    const std::array<std::string, 2> good = {bytes_of(index), bytes_of(rank_file)};
    int refused = 0;
    for (std::uint64_t round = 0; round < 1500; ++round) {
        const std::size_t of = round % 2;
        std::string bytes = good.at(of);
        // A rank file's structure is at its start, and so are most of an index's tables.
        const std::size_t begin = of == 0 ? kSealBytes : 0;
        const std::size_t end = of == 0 ? bytes.size() : 4096;
        for (std::uint64_t change = 0; change <= round % 3; ++change) {
            const std::size_t at = begin + random_bits(1, round, 2 * change) % (end - begin);
            const std::uint64_t value = random_bits(1, round, 2 * change + 1);
            bytes[at] = static_cast<char>(value % 3 == 0 ? value >> 8U : value % 3 == 1 ? 0xFF : 0);
        }
        if (of == 0) {
            seal(std::as_writable_bytes(std::span(bytes)), kIndexFormat);
        }
        put_bytes(paths.at(of), bytes);
        try {
            Reader::open(index)->read_residual(0, 0, {});
        } catch (const ConfigError&) {
            ++refused;
        } catch (const ContractError&) {  // it has no residual
        }
        put_bytes(paths.at(of), good.at(of));
    }
    EXPECT_GT(refused, 300);
}

// One rank's checkpoint with residuals of two tiles, and with what a program keeps.
class WithResiduals : public InFolder {
protected:
    WithResiduals() {
        writer_ = RankFileWriter::make(folder(), 20, 0, 0, ranges_.front(), {1, 4});
        const std::vector<float> zeros(kTiles * kTileElems);
        writer_->write({0, kTiles}, {.master = zeros, .moment1 = zeros, .moment2 = zeros});
        for (const std::size_t tile : {1, 4}) {
            writer_->write_residual(tile, std::span(zeros).first(kTileElems));
        }
        record_ = writer_->finish();
    }

    std::string publish_with(const RankFileRecord& record) const {
        Description about = sample_description(20);
        const std::string kept = "what a program keeps";
        about.programs.push_back(
            write_program(folder(), 20, 0, 0, about.run, std::as_bytes(std::span(kept))));
        return publish(folder(), about, 0, ranges_, {record});
    }
    std::string rank_file() const { return text(folder(), "/", rank_file_name(20, 0, 0)); }

    static std::string shown(const std::string& index) {
        std::ostringstream out;
        inspect(index, out);
        return out.str();
    }

    std::vector<std::vector<shard::TileRange>> ranges_ = {{{0, kTiles}}};
    std::unique_ptr<RankFileWriter> writer_;
    RankFileRecord record_;
};

TEST_F(WithResiduals, NoticesADamagedTileNumber) {
    const std::string index = publish_with(record_);
    const std::string good = bytes_of(rank_file());
    const std::array<std::uint64_t, 2> tiles = {1, 4};
    const std::string stored(reinterpret_cast<const char*>(tiles.data()), sizeof tiles);
    const std::size_t at = good.find(stored);
    ASSERT_NE(at, std::string::npos);
    for (std::size_t byte = 0; byte < sizeof tiles; ++byte) {
        flip_bit(rank_file(), at + byte);
        EXPECT_THAT(message_of<ConfigError>([&] { Reader::open(index); }), states(rank_file()));
        put_bytes(rank_file(), good);
    }
    Reader::open(index);
}

TEST_F(WithResiduals, AreReadAsVersion020RecordedThem) {
    h5::StoredFile file(rank_file());
    auto checksums = h5::read_numbers<std::uint64_t>(file, "tile_xxh3");
    const auto of_residuals = h5::read_numbers<std::uint64_t>(file, "residual_xxh3");
    checksums.insert(checksums.end(), of_residuals.begin(), of_residuals.end());
    record_.tiles_xxh3 = xxh3(std::as_bytes(std::span<const std::uint64_t>(checksums)));
    EXPECT_THAT(Reader::open(publish_with(record_))->residual_ranks(4), testing::ElementsAre(0));
}

TEST_F(WithResiduals, AreVerifiedByInspectAsWhatAProgramKeepsIs) {
    const std::string index = publish_with(record_);
    EXPECT_THAT(shown(index), states("step-00000020.attempt-0.rank-00000.program",
                                     "1 rank files, 1 files of programs and 21 tiles"));
    const std::string program = text(folder(), "/", program_file_name(20, 0, 0));
    const std::string kept = bytes_of(program);
    flip_bit(program, kept.size() - 1);
    EXPECT_THAT(message_of<ConfigError>([&] { shown(index); }), states(program));
    put_bytes(program, kept);
    flip_bit(rank_file(), bytes_of(rank_file()).size() - 400000);  // in the arrays' zeros
    EXPECT_THAT(message_of<ConfigError>([&] { shown(index); }), states(rank_file()));
}

TEST_F(DamagedCheckpoint, HasNoStringThatIsLongerThanItsPlace) {
    const std::string path = write_checkpoint(folder(), 20, 1);
    std::string bytes = bytes_of(path);
    const std::string name = "wte.weight";
    std::size_t patched = 0;
    for (std::size_t at = kSealBytes; at + 16 < bytes.size(); ++at) {
        std::uint32_t length = 0;
        std::uint64_t address = 0;
        std::memcpy(&length, &bytes[at], sizeof length);
        std::memcpy(&address, &bytes[at + 4], sizeof address);
        if (length == name.size() && address < bytes.size() - kSealBytes - 4 &&
            bytes.compare(kSealBytes + address, 4, "GCOL") == 0) {
            bytes[at] = static_cast<char>(length - 1);
            ++patched;
        }
    }
    ASSERT_GT(patched, 0U);
    seal(std::as_writable_bytes(std::span(bytes)), kIndexFormat);
    put_bytes(path, bytes);
    EXPECT_THAT(message_of([&] { Reader::open(path); }),
                AllOf(HasSubstr(path), HasSubstr("another length")));
}

TEST_F(DamagedCheckpoint, NamesAnIndexThatIsMissingOrOfAnotherFormat) {
    EXPECT_THAT(message_of([&] { Reader::open(root() + "/none.h5"); }), HasSubstr("/none.h5"));
    EXPECT_THAT(message_of([&] { Reader::open(root()); }), HasSubstr(root()));
    const std::string foreign = root() + "/foreign.h5";
    h5::close_file(h5::create_file(foreign, 0, 0644), foreign);
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
