// Handles, error checks and writes for HDF5's C API. h5_reader.hpp reads what was written.
#pragma once

#include "base/handle.hpp"

#include <hdf5.h>

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace nearstep::h5 {

template <auto kClose>
void close(hid_t id) noexcept {
    kClose(id);
}
template <auto kClose>
using Object = Handle<hid_t, close<kClose>, H5I_INVALID_HID>;

// Close all objects of a file before the file, or it stays open. A property list with a virtual
// layout that stays open crashes the library at exit.
using File = Object<&H5Fclose>;
using Group = Object<&H5Gclose>;
using Dataset = Object<&H5Dclose>;
using Space = Object<&H5Sclose>;
using Properties = Object<&H5Pclose>;
using Attribute = Object<&H5Aclose>;
using Datatype = Object<&H5Tclose>;

// Throws Hdf5Error: "HDF5 cannot <attempt>: <innermost reason on the library's error stack>."
[[noreturn]] void fail(const std::string& attempt);

// Returns `result`; calls fail() if it is negative.
template <typename Result>
Result check(Result result, const std::string& attempt) {
    if (result < 0) {
        fail(attempt);
    }
    return result;
}

// Creates a file, which must not exist, with at most the permissions in `mode`. The first
// `user_bytes` (0, or a power of two from 512) are left to the caller. Takes no file lock: some
// parallel file systems have none.
File create_file(const std::string& path, std::size_t user_bytes, mode_t mode);

// Opens a file that create_file() made and nobody else wrote to, to add attributes.
File open_file(const std::string& path);

// A file that has no name yet and lies in memory.
File create_in_memory(std::size_t user_bytes);
// Returns the bytes of a file in memory, with `user_bytes` of zeros at the start. All objects of
// the file are closed.
std::vector<std::byte> image_of(File file, std::size_t user_bytes);

// Flushes the file to the operating system and closes it. All its objects are closed.
void close_file(File file, const std::string& path);

// Closes an object that was written to. A destructor would drop the error of a failed write.
template <typename Owned>
void finish(Owned object, herr_t (*close)(hid_t), const std::string& attempt) {
    check(close(object.release()), attempt);
}

Properties make_properties(hid_t kind);
Space make_space(std::span<const hsize_t> extent);
Group make_group(hid_t at, const std::string& name);

// Makes a contiguous dataset whose space is allocated at once and not filled.
Dataset make_dataset(hid_t at, const std::string& name, hid_t type,
                     std::span<const hsize_t> extent);

Dataset open_dataset(const File& file, const std::string& path);

// A part of a dataset: start and count per dimension.
struct Part {
    std::vector<hsize_t> start;
    std::vector<hsize_t> count;
};
void write_part(const Dataset& dataset, const Part& part, hid_t memory_type, const void* data);

// 16-bit IEEE floating point, as h5py defines numpy.float16.
Datatype make_fp16();

template <typename Number>
hid_t native_type() {
    if constexpr (std::is_same_v<Number, std::int64_t>) {
        return H5T_NATIVE_INT64;
    } else if constexpr (std::is_same_v<Number, std::uint64_t>) {
        return H5T_NATIVE_UINT64;
    } else {
        static_assert(std::is_same_v<Number, double>, "numbers are 64 bits wide");
        return H5T_NATIVE_DOUBLE;
    }
}

void write_values(hid_t at, const std::string& name, hid_t type, std::span<const hsize_t> extent,
                  const void* values);
template <typename Number>
void write_numbers(hid_t at, const std::string& name, std::span<const hsize_t> extent,
                   std::span<const Number> values) {
    write_values(at, name, native_type<Number>(), extent, values.data());
}

// One-dimensional datasets of variable-length UTF-8 strings.
void write_strings(hid_t at, const std::string& name, const std::vector<std::string>& values);

void write_attribute(hid_t object, const std::string& name, hid_t type, const void* value);

template <typename Number>
void write_number(hid_t object, const std::string& name, Number value) {
    write_attribute(object, name, native_type<Number>(), &value);
}

void write_text(hid_t object, const std::string& name, const std::string& value);
// An attribute of several texts.
void write_texts(hid_t object, const std::string& name, const std::vector<std::string>& values);

}  // namespace nearstep::h5
