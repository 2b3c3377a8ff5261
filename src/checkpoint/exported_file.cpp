// Lists the datasets of an HDF5 export. Used by export.cpp and inspect.cpp.
#include "checkpoint/exported_file.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/units.hpp"

#include <algorithm>
#include <span>

namespace nearstep::checkpoint {

std::vector<std::string> datasets_of(h5::StoredFile& file) {
    std::vector<std::string> paths;
    for (const std::string& name : file.names()) {
        if (!file.is_group(name)) {
            paths.push_back(name);
            continue;
        }
        for (const std::string& inner : file.names(name)) {
            paths.push_back(text(name, "/", inner));
        }
    }
    return paths;
}

FileRanges elements_of(h5::StoredFile& file) {
    FileRanges ranges;
    for (const std::string& path : datasets_of(file)) {
        const h5::Array dataset = file.dataset(path);
        ranges.push_back(
            {.begin = dataset.offset, .end = dataset.offset + dataset.elems * dataset.elem_bytes});
    }
    return ranges;
}

std::uint64_t digest_of(const h5::StoredFile& file, const h5::Array& dataset) {
    Xxh3Stream digest;
    std::vector<std::byte> bytes;
    const std::uint64_t most = MiB / dataset.elem_bytes;
    for (std::uint64_t done = 0; done < dataset.elems; done += most) {
        bytes.resize(std::min<std::uint64_t>(dataset.elems - done, most) * dataset.elem_bytes);
        file.read(dataset, done, bytes);
        digest.add(bytes);
    }
    return digest.digest();
}

}  // namespace nearstep::checkpoint
