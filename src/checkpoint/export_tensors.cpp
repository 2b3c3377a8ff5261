// Lists what an HDF5 export holds. Used by export.cpp.
#include "checkpoint/export_tensors.hpp"

#include "base/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

namespace nearstep::checkpoint {

namespace {

struct OtherType {
    const char* word;  // as safetensors writes it
    hid_t (*type)();
};

// HDF5 has no type of truth values, so these are bytes.
constexpr std::array<OtherType, 11> kOtherTypes = {{
    {"F64", [] { return H5T_IEEE_F64LE; }},
    {"F32", [] { return H5T_IEEE_F32LE; }},
    {"I64", [] { return H5T_STD_I64LE; }},
    {"I32", [] { return H5T_STD_I32LE; }},
    {"I16", [] { return H5T_STD_I16LE; }},
    {"I8", [] { return H5T_STD_I8LE; }},
    {"U64", [] { return H5T_STD_U64LE; }},
    {"U32", [] { return H5T_STD_U32LE; }},
    {"U16", [] { return H5T_STD_U16LE; }},
    {"U8", [] { return H5T_STD_U8LE; }},
    {"BOOL", [] { return H5T_STD_U8LE; }},
}};
constexpr const char* kHalf = "F16";

const OtherType* find_type(const std::string& word) {
    const auto* const found =
        std::ranges::find_if(kOtherTypes, [&](const OtherType& type) { return type.word == word; });
    return found == kOtherTypes.end() ? nullptr : found;
}

void check_name(const std::string& name, std::set<std::string>& names) {
    constexpr std::size_t kMostBytes = 4096;  // HDF5's heaps hold 64 KiB
    constexpr std::size_t kMostShown = 64;
    const std::string start = name.size() > kMostBytes ? name.substr(0, kMostShown) + "..." : name;
    const std::string shown =
        nlohmann::json(start).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    const bool is_word = name.find('/') == name.npos && name.find('\0') == name.npos;
    if (name.empty() || name == "." || !is_word || name.size() > kMostBytes) {
        throw ConfigError(text("Cannot export a tensor named ", shown,
                               " to HDF5, where a name has neither / nor zero bytes and at most ",
                               kMostBytes, " bytes: export safetensors."));
    }
    if (!names.insert(name).second) {
        throw ConfigError(
            text("Cannot export two tensors of one name, ", shown, ": rename one of them."));
    }
}

}  // namespace

std::string group_of(StateArray array) {
    return array == StateArray::master ? "" : array == StateArray::moment1 ? "moment1" : "moment2";
}

std::string ExportTensor::path() const {
    return array == StateArray::master ? place.name : text(group_of(array), "/", place.name);
}

std::vector<ExportTensor> export_tensors(const Description& about, const ExportSettings& settings,
                                         std::span<const OtherTensor> others) {
    const std::vector<TensorPlace> places = in_order(about.tensors);
    std::vector<ExportTensor> tensors;
    std::set<std::string> names;
    const auto add = [&](StateArray array, Dtype dtype) {
        for (const TensorPlace& place : places) {
            tensors.push_back({.place = place,
                               .array = array,
                               .dtype = dtype,
                               .bytes = elems_of(place.shape) * size_bytes(dtype)});
        }
    };
    const bool has_moments = settings.moments == Moments::written;
    for (const TensorPlace& place : places) {
        check_name(place.name, names);
    }
    add(StateArray::master, settings.dtype);
    for (const OtherTensor& other : others) {
        check_name(other.name, names);
        if (other.dtype != kHalf && find_type(other.dtype) == nullptr) {
            throw ConfigError(text("Cannot export ", other.name, ": HDF5 has no type like ",
                                   other.dtype, ". Export safetensors."));
        }
        tensors.push_back({.place = {.name = other.name, .shape = other.shape},
                           .bytes = other.bytes,
                           .other = &other});
    }
    for (const StateArray array : {StateArray::moment1, StateArray::moment2}) {
        if (has_moments && names.contains(group_of(array))) {
            throw ConfigError(text("Cannot export the moments: a tensor is named ", group_of(array),
                                   ", as the group of the moments. Export without moments."));
        }
        if (has_moments) {
            add(array, Dtype::fp32);
        }
    }
    return tensors;
}

std::size_t bytes_of(std::span<const ExportTensor> tensors) {
    std::size_t bytes = 0;
    for (const ExportTensor& tensor : tensors) {
        bytes += tensor.bytes;
    }
    return bytes;
}

std::vector<std::size_t> tensors_of_rank(std::span<const ExportTensor> tensors, int rank,
                                         int ranks) {
    const double share = static_cast<double>(bytes_of(tensors)) / ranks;
    std::vector<std::size_t> own;
    std::size_t before = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const double middle =
            static_cast<double>(before) + static_cast<double>(tensors[i].bytes) / 2;
        const int writer = tensors[i].other != nullptr
                               ? 0
                               : std::clamp(static_cast<int>(middle / share), 0, ranks - 1);
        if (writer == rank) {
            own.push_back(i);
        }
        before += tensors[i].bytes;
    }
    return own;
}

h5::Datatype make_type(const ExportTensor& tensor) {
    const std::string word = tensor.other != nullptr       ? tensor.other->dtype
                             : tensor.dtype == Dtype::fp16 ? kHalf
                                                           : "F32";
    return word == kHalf ? h5::make_fp16()
                         : h5::Datatype(h5::check(H5Tcopy(find_type(word)->type()), "copy a type"));
}

}  // namespace nearstep::checkpoint
