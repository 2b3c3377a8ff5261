// Tests the HDF5 files of nearstep export.
#include "checkpoint/export.hpp"

#include "base/digest.hpp"
#include "base/units.hpp"
#include "base/words.hpp"
#include "checkpoint/h5_reader.hpp"
#include "checkpoint/sample_checkpoint.hpp"
#include "support/places.hpp"
#include "support/test.hpp"

namespace nearstep::checkpoint {
namespace {

class Export : public InFolder, public testing::WithParamInterface<Dtype> {
protected:
    Export() : index_(write_checkpoint(folder(), 20, 1)), out_(root() + "/model.h5") {}

    const std::string& index() const { return index_; }
    const std::string& out() const { return out_; }

private:
    std::string index_;
    std::string out_;
};

std::size_t count_elems(const TensorPlace& tensor) {
    std::size_t elems = 1;
    for (const std::int64_t dimension : tensor.shape) {
        elems *= static_cast<std::size_t>(dimension);
    }
    return elems;
}

std::vector<std::byte> expected_bytes(const TensorPlace& tensor, Dtype dtype) {
    const auto masters = sample_values(1, 0);
    const std::size_t elems = count_elems(tensor);
    std::vector<std::byte> bytes(elems * size_bytes(dtype));
    convert_from_fp32(masters.data() + tensor.offset, dtype, bytes.data(), elems);
    return bytes;
}

std::string inspect_text(const std::string& path) {
    std::ostringstream out;
    inspect(path, out);
    return out.str();
}

TEST_P(Export, HasADatasetPerParameter) {
    export_alone(index(), out(), {.dtype = GetParam()});
    h5::StoredFile file(out());
    EXPECT_EQ(h5::read_text(file, "config"), sample_description(20).config);
    EXPECT_EQ(h5::read_text(file, "model"), sample_description(20).model);
    EXPECT_EQ(h5::read_number<std::int64_t>(file, "step"), 20);
    for (const TensorPlace& tensor : sample_tensors()) {
        const h5::Array dataset = file.dataset(tensor.name);
        EXPECT_EQ(dataset.extent,
                  std::vector<std::uint64_t>(tensor.shape.begin(), tensor.shape.end()));
        ASSERT_EQ(dataset.elem_bytes, size_bytes(GetParam()));
        const std::vector<std::byte> expected = expected_bytes(tensor, GetParam());
        EXPECT_EQ(file.content(dataset, h5::Kind::real), expected) << tensor.name;
        EXPECT_EQ(h5::read_number<std::uint64_t>(file, "xxh3", tensor.name), xxh3(expected))
            << tensor.name;
    }
}

TEST_P(Export, ReplacesAnOldFileAndLeavesNoOther) {
    put_bytes(out(), "old");
    put_bytes(out() + ".partial", std::string(512, '\0') + "left by a crash");
    export_alone(index(), out(), {.dtype = GetParam()});
    EXPECT_THAT(inspect_text(out()), HasSubstr("6 datasets are as they were written"));
    EXPECT_FALSE(fs::exists(out() + ".partial"));
}

TEST_P(Export, ReplacesNoOtherFileAndFollowsNoLink) {
    put_bytes(out() + ".partial", "my own notes");
    EXPECT_THAT(message_of([&] { export_alone(index(), out(), {.dtype = GetParam()}); }),
                HasSubstr(out() + ".partial"));
    EXPECT_EQ(bytes_of(out() + ".partial"), "my own notes");
    fs::rename(out() + ".partial", root() + "/notes");
    fs::create_symlink(root() + "/notes", out() + ".partial");
    EXPECT_THAT(message_of([&] { export_alone(index(), out(), {.dtype = GetParam()}); }),
                HasSubstr(out() + ".partial"));
    EXPECT_EQ(bytes_of(root() + "/notes"), "my own notes");
}

TEST_P(Export, KeepsTheOldFileIfTheCheckpointIsDamaged) {
    put_bytes(out(), "old");
    const std::string path = folder() + "/step-00000020.attempt-0.rank-00001.h5";
    const auto masters = sample_values(1, 0);
    const std::string needle(reinterpret_cast<const char*>(masters.data() + 2 * shard::kTileElems),
                             32);
    flip_bit(path, bytes_of(path).find(needle));
    EXPECT_THAT(message_of([&] { export_alone(index(), out(), {.dtype = GetParam()}); }),
                AllOf(HasSubstr(path), HasSubstr("tile 2 of master")));
    EXPECT_EQ(bytes_of(out()), "old");
    EXPECT_FALSE(fs::exists(out() + ".partial"));
}

TEST_P(Export, IsReadByH5py) {
    export_alone(index(), out(), {.dtype = GetParam()});
    const auto masters = sample_values(1, 0);
    put_bytes(root() + "/masters",
              {reinterpret_cast<const char*>(masters.data()), masters.size() * sizeof(float)});
    if (!has_h5py()) {
        GTEST_SKIP() << test::kPython << " has no h5py";
    }
    EXPECT_EQ(run_python(text(test::source_file("tests/checkpoint/read_export.py"), " ", out(), " ",
                              index(), " ", root(), "/masters ",
                              GetParam() == Dtype::fp16 ? "float16" : "float32")),
              0);
}

INSTANTIATE_TEST_SUITE_P(InEachType, Export, testing::Values(Dtype::fp32, Dtype::fp16),
                         [](const auto& instance) { return name_of(instance.param); });

class ExportTo : public Export {};

TEST_F(ExportTo, RefusesABadTypeOrPlace) {
    const auto refusal = [&](const std::string& place, Dtype dtype) {
        return message_of([&] { export_alone(index(), place, {.dtype = dtype}); });
    };
    EXPECT_THAT(refusal(out(), Dtype::bf16), HasSubstr("bf16"));
    EXPECT_THAT(refusal(root(), Dtype::fp32), states(root(), "folder"));
    EXPECT_THAT(refusal(root() + "/none/model.h5", Dtype::fp32), HasSubstr("no folder"));
    EXPECT_THAT(refusal(root() + "/step-00000021.h5", Dtype::fp32),
                states("step-00000021.h5", "model.h5"));
    EXPECT_THAT(refusal(folder() + "/step-00000020.attempt-0.rank-00000.h5", Dtype::fp32),
                states("step-00000020.attempt-0.rank-00000.h5", "model.h5"));
    EXPECT_THAT(
        message_of([&] { export_alone(root() + "/none.h5", out(), {.dtype = Dtype::fp32}); }),
        HasSubstr("/none.h5"));
    EXPECT_FALSE(fs::exists(out()));
}

TEST_F(ExportTo, RefusesAFolderThatIsThereOrCannotBeNamed) {
    fs::create_directory(root() + "/empty");
    fs::create_symlink("empty", root() + "/link");
    fs::create_symlink("nothing", root() + "/dangling");
    const auto refusal = [&](const std::string& place) {
        return message_of([&] { export_folder_alone(index(), place, MiB); });
    };
    for (const char* name : {"link", "dangling"}) {
        EXPECT_THAT(refusal(root() + "/" + name), states(name, "Name a new folder"));
        EXPECT_FALSE(fs::exists(root() + "/" + name + ".partial"));
    }
    EXPECT_THAT(refusal(root() + "/empty/."), HasSubstr("Name a new folder"));
    EXPECT_TRUE(fs::is_empty(root() + "/empty"));
}

TEST_F(ExportTo, HasMomentsNotesAndTextsBeside) {
    const ModelTexts texts = {.config = R"({"torch_dtype": "float32", "n_layer": 2})",
                              .notes = {{"wte.weight", {"entry, feature", {"lm_head.weight"}}}}};
    export_alone(index(), out(), {.moments = Moments::written}, texts);
    h5::StoredFile file(out());
    for (const TensorPlace& tensor : sample_tensors()) {
        for (const std::uint64_t array : {1U, 2U}) {
            const auto values = sample_values(1, array);
            const auto bytes =
                std::as_bytes(std::span(values).subspan(tensor.offset, count_elems(tensor)));
            EXPECT_EQ(
                file.content(file.dataset(text("moment", array, "/", tensor.name)), h5::Kind::real),
                std::vector<std::byte>(bytes.begin(), bytes.end()));
        }
    }
    EXPECT_THAT(inspect_text(out()),
                AllOf(HasSubstr("layout: entry, feature"), HasSubstr("ties: lm_head.weight"),
                      HasSubstr("18 datasets are as they were written")));
    EXPECT_EQ(bytes_of(root() + "/config.json"), texts.config);
    export_alone(index(), out(), {}, {.config = R"({"torch_dtype": "float16", "n_layer": 2})"});
    EXPECT_THAT(message_of([&] {
                    export_alone(index(), root() + "/other.h5", {},
                                 {.config = R"({"n_layer": 3})"});
                }),
                states("config.json", "another folder"));
    EXPECT_FALSE(fs::exists(root() + "/other.h5"));
}

TEST_F(ExportTo, IsShownByInspect) {
    export_alone(index(), out(), {.dtype = Dtype::fp16});
    const std::string shown = inspect_text(out());
    EXPECT_THAT(
        shown,
        AllOf(HasSubstr("export " + out()), HasSubstr("step 20"), HasSubstr("steps = 40"),
              HasSubstr("h.0.attn.c_attn.weight [3, 211, 257] 162681"), HasSubstr("h.0.scale [] 1"),
              HasSubstr("6 datasets are as they were written")));
    EXPECT_LT(shown.find("wte.weight"), shown.find("h.0.attn.bias"))
        << "datasets are in the model's order";
}

TEST_F(ExportTo, NoticesAFlippedByteAnywhere) {
    export_alone(index(), out(), {.dtype = Dtype::fp16});
    const std::string good = bytes_of(out());
    for (std::size_t at = 0; at < good.size(); at += at < 4096 ? 61 : 7919) {
        flip_bit(out(), at);
        EXPECT_THAT(message_of([&] { inspect_text(out()); }), HasSubstr(out())) << "byte " << at;
        put_bytes(out(), good);
    }
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{60}, good.size() / 2, good.size() - 1}) {
        fs::resize_file(out(), bytes);
        EXPECT_THAT(message_of([&] { inspect_text(out()); }), HasSubstr(out()))
            << bytes << " bytes";
        put_bytes(out(), good);
    }
    EXPECT_THAT(inspect_text(out()), states(out(), "6 datasets"));
}

TEST_F(ExportTo, InspectShowsACheckpoint) {
    EXPECT_THAT(
        inspect_text(index()),
        AllOf(HasSubstr("checkpoint " + index()),
              HasSubstr("step 20, generation 19, loss scale 4096.5"), HasSubstr("steps = 40"),
              HasSubstr("step-00000020.attempt-0.rank-00003.h5"), HasSubstr("ln_f.bias [2, 10] 20"),
              HasSubstr("21 tiles are as they were written")));
}

TEST_F(ExportTo, InspectNoticesADamagedTile) {
    const std::string path = folder() + "/step-00000020.attempt-0.rank-00002.h5";
    const auto values = sample_values(1, 2);
    const std::string needle(
        reinterpret_cast<const char*>(values.data() + 6 * shard::kTileElems + 40), 32);
    flip_bit(path, bytes_of(path).find(needle));
    EXPECT_THAT(message_of([&] { inspect_text(index()); }),
                AllOf(HasSubstr(path), HasSubstr("tile 6 of moment2")));
}

TEST_F(ExportTo, InspectRefusesOtherFiles) {
    EXPECT_THAT(message_of([&] { inspect_text(root() + "/none.h5"); }), HasSubstr("/none.h5"));
    EXPECT_THAT(
        message_of([&] { inspect_text(folder() + "/step-00000020.attempt-0.rank-00000.h5"); }),
        HasSubstr("neither"));
    put_bytes(out(), "garbage");
    EXPECT_THAT(message_of([&] { inspect_text(out()); }),
                AllOf(HasSubstr(out()), HasSubstr("neither")));
}

}  // namespace
}  // namespace nearstep::checkpoint
