// Tests the reading of safetensors files, and that headers that lie are refused.
#include "checkpoint/safetensors.hpp"

#include "support/test.hpp"

namespace nearstep::checkpoint {
namespace {

std::string file_of(const std::string& header, const std::string& data) {
    std::string bytes(sizeof(std::uint64_t), '\0');
    const std::uint64_t size = header.size();
    std::memcpy(bytes.data(), &size, sizeof size);
    return bytes + header + data;
}

std::string bytes_of_values(const std::vector<float>& values) {
    std::string bytes(values.size() * sizeof(float), '\0');
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}

class SafetensorsTest : public testing::Test {
protected:
    std::string write(const std::string& name, const std::string& bytes) const {
        return folder_.write(name, bytes);
    }
    const std::string& folder() const { return folder_.path(); }

    std::string refusal(const std::string& header, const std::string& data) const {
        const std::string path = write("file", file_of(header, data));
        return message_of<ConfigError>([&] { const Safetensors file(path); });
    }

private:
    ScratchFolder folder_;
};

TEST_F(SafetensorsTest, ReadsPartsOfTensorsAtAnyAlignment) {
    std::vector<float> values(10000);
    std::iota(values.begin(), values.end(), 0.5F);
    // The header has an odd length, and bf16 values follow: 0x3F80 is 1, 0xC000 is -2.
    std::string header = R"({"__metadata__":{"format":"pt"},)"
                         R"("h":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
                         R"("a":{"dtype":"F32","shape":[100,100],"data_offsets":[4,40004]}})";
    header.append(header.size() % 2 == 0 ? 1 : 0, ' ');
    const Safetensors file(write(
        "odd", file_of(header, std::string("\x80\x3F\x00\xC0", 4) + bytes_of_values(values))));
    std::vector<float> part(7001);
    Safetensors::read(*file.find("a"), 1234, part);
    EXPECT_EQ(part, std::vector<float>(values.begin() + 1234, values.begin() + 1234 + 7001));
    std::vector<float> both(2);
    Safetensors::read(*file.find("h"), 0, both);
    EXPECT_THAT(both, ElementsAre(1.0F, -2.0F));
    EXPECT_THAT(file.find("a")->shape, ElementsAre(100, 100));
    EXPECT_EQ(file.find("b"), nullptr);
    EXPECT_EQ(file.find("__metadata__"), nullptr);
}

TEST_F(SafetensorsTest, LeavesFormatsThatItCannotRead) {
    const Safetensors file(
        write("mask", file_of(R"({"m":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})",
                              std::string(3, '\1'))));
    ASSERT_NE(file.find("m"), nullptr);
    EXPECT_FALSE(file.find("m")->dtype);
}

TEST_F(SafetensorsTest, ReadsTheShardsOfAFolder) {
    write("one.safetensors", file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                                     bytes_of_values({1})));
    write("two.safetensors", file_of(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                                     bytes_of_values({2})));
    write("model.safetensors.index.json",
          R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
    const Safetensors both(folder());
    std::vector<float> value(1);
    Safetensors::read(*both.find("b"), 0, value);
    EXPECT_THAT(value, ElementsAre(2.0F));
    write("model.safetensors.index.json", R"({"weight_map":{"b":"one.safetensors"}})");
    EXPECT_THAT(message_of<ConfigError>([&] { const Safetensors file(folder()); }),
                HasSubstr(R"(lacks the tensor "b")"));
    for (const char* elsewhere : {"../one.safetensors", "/etc/passwd", ""}) {
        write("model.safetensors.index.json", text(R"({"weight_map":{"a":")", elsewhere, R"("}})"));
        EXPECT_THAT(message_of<ConfigError>([&] { const Safetensors file(folder()); }),
                    HasSubstr(text("\"", elsewhere, "\"")));
    }
    write("model.safetensors.index.json", "[]");
    EXPECT_THAT(message_of<ConfigError>([&] { const Safetensors file(folder()); }),
                HasSubstr("no JSON object"));
}

TEST_F(SafetensorsTest, KnowsWhatTheIndexOfAFolderLeavesOut) {
    const std::string both = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                             R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";
    write("model-00001-of-00001.safetensors", file_of(both, bytes_of_values({1, 2})));
    write("model.safetensors.index.json",
          R"({"weight_map":{"a":"model-00001-of-00001.safetensors"}})");
    write("adapter.safetensors", "of something else");
    EXPECT_EQ(Safetensors(folder()).tensors().size(), 2U) << "the shard holds one more";
    for (const char* other : {"model.safetensors", "model-00002-of-00002.safetensors"}) {
        const std::string path = write(other, file_of(both, bytes_of_values({1, 2})));
        EXPECT_THAT(
            message_of<ConfigError>([&] { const Safetensors file(folder()); }),
            HasSubstr(text("\"", other, "\", which its model.safetensors.index.json does")));
        std::filesystem::remove(path);
    }
}

TEST_F(SafetensorsTest, RefusesHeadersThatLie) {
    const std::string four(4, '\0');
    const auto tensor = [](const char* dtype, const char* shape, const char* offsets) {
        return text(R"({"a":{"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)",
                    offsets, "}}");
    };
    EXPECT_THAT(refusal(tensor("F32", "[1]", "[0,8]"), four), states("a", "outside"));
    EXPECT_THAT(refusal(tensor("F32", "[1]", "[4,0]"), four), states("a", "outside"));
    EXPECT_THAT(refusal(tensor("F32", "[1]", "[18446744073709551615,4]"), four),
                states("a", "outside"));
    EXPECT_THAT(refusal(tensor("F32", "[1]", "[-4,4]"), four), states("a", "whole number"));
    EXPECT_THAT(refusal(tensor("F32", "[1]", "[0.5,4]"), four), states("a", "whole number"));
    EXPECT_THAT(refusal(tensor("F32", "[2]", "[0,4]"), four), HasSubstr("another size"));
    EXPECT_THAT(refusal(tensor("F16", "[1]", "[0,3]"), four), HasSubstr("another size"));
    EXPECT_THAT(refusal(tensor("F32", "[-1]", "[0,4]"), four), HasSubstr("another size"));
    EXPECT_THAT(refusal(tensor("F32", "[4294967296,4294967296,0]", "[0,0]"), four),
                HasSubstr("another size"));
    EXPECT_THAT(refusal(R"({"a":{"dtype":"F32","shape":[1]}})", four), HasSubstr(R"(tensor "a")"));
    EXPECT_THAT(refusal(R"({"a":7})", four), HasSubstr(R"(tensor "a")"));
    EXPECT_THAT(refusal("{\"a\\n\x7F\":7}", four), HasSubstr(R"(tensor "a\n\u007f")"));
    EXPECT_THAT(refusal(R"({"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},)"
                        R"("b":{"dtype":"F16","shape":[1],"data_offsets":[2,4]}})",
                        four),
                HasSubstr("overlap"));
    EXPECT_THAT(refusal("{", four), HasSubstr("no JSON object"));
}

TEST_F(SafetensorsTest, RefusesAFileThatIsCutShort) {
    const std::string whole =
        file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", bytes_of_values({1}));
    for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
        const std::string path = write("cut", whole.substr(0, bytes));
        EXPECT_NE(message_of<ConfigError>([&] { const Safetensors file(path); }), "") << bytes;
    }
    EXPECT_THAT(message_of<ConfigError>([&] { const Safetensors file(folder() + "/none"); }),
                states(folder() + "/none"));
}

}  // namespace
}  // namespace nearstep::checkpoint
