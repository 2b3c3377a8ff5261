// Any bytes as a safetensors file: an accepted file can be read to its end.
#include "base/error.hpp"
#include "checkpoint/safetensors.hpp"
#include "fuzz.hpp"

namespace nearstep::fuzz {

namespace {

std::string with_length(const std::string& header, const std::string& data) {
    std::string bytes;
    for (unsigned shift = 0; shift < 64; shift += 8) {
        bytes.push_back(static_cast<char>(header.size() >> shift));
    }
    return bytes + header + data;
}

}  // namespace

std::vector<std::string> seeds() {
    return {with_length(R"({"__metadata__":{"format":"pt"},)"
                        R"("a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                        R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]}})",
                        std::string(12, 'x')),
            with_length(R"({"a":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})", "abc")};
}

void read(Bytes bytes) {
    const std::string path = scratch_folder() + "/model.safetensors";
    write_file(path, std::string(bytes.begin(), bytes.end()));
    const checkpoint::Safetensors file(path);
    for (const char* name : {"a", "b", ""}) {
        const checkpoint::StoredTensor* tensor = file.find(name);
        if (tensor == nullptr || !tensor->dtype) {
            continue;
        }
        std::vector<float> values(tensor->bytes / size_bytes(*tensor->dtype));
        require(values.size() <= bytes.size(), "tensors are in the file");
        checkpoint::Safetensors::read(*tensor, 0, values);
    }
}

}  // namespace nearstep::fuzz
