// Calls HDF5 and turns its errors into exceptions. Used by the rest of this module.
#include "checkpoint/h5.hpp"

#include "base/descriptor.hpp"
#include "base/error.hpp"
#include "base/units.hpp"

#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

namespace nearstep::h5 {

namespace {

// Must run before the first call of the library, so every function that opens a file calls it. It
// turns off the printing of errors to stderr, which a thread-safe build sets per thread. It also
// turns off the clean-up at exit, which crashes on a file that failed to close, as on a full disk;
// handles close everything else.
void enter_library() {
    H5dont_atexit();
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

// The library's words on one line: of a failed call of the system its reason, without offsets and
// addresses.
std::string shortened(std::string words) {
    const std::string before = "error message = '";
    const std::size_t place = words.find(before);
    const std::size_t begin = place + before.size();
    if (place != std::string::npos) {
        const std::string reason = words.substr(begin, words.find('\'', begin) - begin);
        words = words.substr(0, words.find(": time = ")) + " (" + reason + ")";
    }
    std::ranges::replace(words, '\n', ' ');
    return words;
}

// The errno in the library's words; 0 if there is none. The name of a file may precede it.
int errno_in(std::string_view words) {
    constexpr std::string_view kErrno = "errno = ";
    int code = 0;
    if (const std::size_t at = words.rfind(kErrno); at != std::string_view::npos) {
        std::from_chars(words.data() + at + kErrno.size(), words.data() + words.size(), code);
    }
    return code;
}

struct Reason {
    std::string words = "no reason given";
    int code = 0;
};

herr_t keep_first(unsigned depth, const H5E_error2_t* error, void* out) {
    if (depth == 0 && error->desc != nullptr) {
        *static_cast<Reason*>(out) = {shortened(error->desc), errno_in(error->desc)};
    }
    return 0;
}

Properties access_properties() {
    Properties access = make_properties(H5P_FILE_ACCESS);
    // Since version 1.8 object headers have checksums.
    check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_LATEST),
          "set a file's version");
    check(H5Pset_file_locking(access.get(), false, true), "turn file locking off");
    // Without a buffer for small writes, each write reports its own error.
    check(H5Pset_sieve_buf_size(access.get(), 0), "turn a buffer off");
    return access;
}

Properties creation_properties(std::size_t user_bytes) {
    Properties creation = make_properties(H5P_FILE_CREATE);
    check(H5Pset_userblock(creation.get(), user_bytes), "set a user block");
    check(H5Pset_link_creation_order(creation.get(), H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED),
          "track the order of creation");
    return creation;
}

Datatype make_string_type() {
    Datatype type(check(H5Tcopy(H5T_C_S1), "copy a type"));
    check(H5Tset_size(type.get(), H5T_VARIABLE), "make a string type");
    check(H5Tset_cset(type.get(), H5T_CSET_UTF8), "make a string type");
    return type;
}

// The path of the file that holds a dataset.
std::string file_of(const Dataset& dataset) {
    const auto bytes = H5Fget_name(dataset.get(), nullptr, 0);
    std::string path(bytes < 0 ? 0 : static_cast<std::size_t>(bytes), '\0');
    H5Fget_name(dataset.get(), path.data(), path.size() + 1);
    return path;
}

Space select(const Dataset& dataset, const Part& part) {
    Space space(check(H5Dget_space(dataset.get()), "read a dataset's extent"));
    if (!part.start.empty()) {
        check(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, part.start.data(), nullptr,
                                  part.count.data(), nullptr),
              "select a part of a dataset");
    }
    return space;
}

std::vector<const char*> pointers_to(const std::vector<std::string>& values) {
    std::vector<const char*> pointers(values.size());
    std::ranges::transform(values, pointers.begin(),
                           [](const std::string& v) { return v.c_str(); });
    return pointers;
}

void write_attribute_of(hid_t object, const std::string& name, hid_t type, const Space& space,
                        const void* value) {
    Attribute attribute(
        check(H5Acreate2(object, name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT),
              text("create attribute ", name)));
    const std::string attempt = text("write attribute ", name);
    check(H5Awrite(attribute.get(), type, value), attempt);
    finish(std::move(attribute), H5Aclose, attempt);
}

}  // namespace

void fail(const std::string& attempt) {
    Reason reason;
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, &reason);
    throw Hdf5Error(text("HDF5 cannot ", attempt, ": ", reason.words, "."), reason.code);
}

Properties make_properties(hid_t kind) {
    return Properties(check(H5Pcreate(kind), "make a property list"));
}

File create_file(const std::string& path, std::size_t user_bytes, mode_t mode) {
    enter_library();
    const Properties creation = creation_properties(user_bytes);
    const Properties access = access_properties();
    // The library itself gives everybody the permissions that the umask leaves.
    if (!Descriptor(
            ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode))) {
        const int code = errno;
        throw Hdf5Error(text("HDF5 cannot create ", path), code);
    }
    return File(check(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()),
                      text("create ", path)));
}

File open_file(const std::string& path) {
    enter_library();
    const Properties access = access_properties();
    return File(check(H5Fopen(path.c_str(), H5F_ACC_RDWR, access.get()), text("open ", path)));
}

File create_in_memory(std::size_t user_bytes) {
    constexpr std::size_t kGrowth = 64 * KiB;
    enter_library();
    const Properties creation = creation_properties(user_bytes);
    const Properties access = access_properties();
    check(H5Pset_fapl_core(access.get(), kGrowth, false), "keep a file in memory");
    return File(
        check(H5Fcreate("in memory", H5F_ACC_EXCL, creation.get(), access.get()), "make a file"));
}

namespace {

// Bob Jenkins' lookup3, by which HDF5 checks its structures; for a multiple of 4 bytes.
std::uint32_t lookup3(std::span<const std::byte> bytes) {
    std::uint32_t a = 0xDEADBEEFU + static_cast<std::uint32_t>(bytes.size());
    std::uint32_t b = a;
    std::uint32_t c = a;
    const auto word = [&](std::size_t i) {
        std::uint32_t value = 0;
        if (i * 4 < bytes.size()) {
            std::memcpy(&value, bytes.data() + i * 4, 4);
        }
        return value;
    };
    const auto mix = [](std::uint32_t& x, std::uint32_t& y, std::uint32_t& z, int bits) {
        x = (x - z) ^ std::rotl(z, bits);
        z += y;
    };
    const auto end = [](std::uint32_t& x, std::uint32_t y, int bits) {
        x = (x ^ y) - std::rotl(y, bits);
    };
    std::size_t at = 0;
    for (; bytes.size() - at * 4 > 12; at += 3) {
        a += word(at), b += word(at + 1), c += word(at + 2);
        mix(a, b, c, 4), mix(b, c, a, 6), mix(c, a, b, 8);
        mix(a, b, c, 16), mix(b, c, a, 19), mix(c, a, b, 4);
    }
    a += word(at), b += word(at + 1), c += word(at + 2);
    end(c, b, 14), end(a, c, 11), end(b, a, 25);
    end(c, b, 16), end(a, c, 4), end(b, a, 14), end(c, b, 24);
    return c;
}

}  // namespace

std::vector<std::byte> image_of(File file, std::size_t user_bytes) {
    check(H5Fflush(file.get(), H5F_SCOPE_LOCAL), "complete a file");
    const ssize_t bytes = check(H5Fget_file_image(file.get(), nullptr, 0), "measure a file");
    // The library leaves the user block out.
    std::vector<std::byte> image(user_bytes + static_cast<std::size_t>(bytes));
    check(H5Fget_file_image(file.get(), image.data() + user_bytes, static_cast<std::size_t>(bytes)),
          "copy a file");
    finish(std::move(file), H5Fclose, "close a file");
    // The library clears flags of the superblock in the copy, behind its checksum.
    constexpr std::size_t kChecked = 44;
    const std::uint32_t checksum = lookup3(std::span(image).subspan(user_bytes, kChecked));
    std::memcpy(image.data() + user_bytes + kChecked, &checksum, sizeof checksum);
    return image;
}

void close_file(File file, const std::string& path) {
    check(H5Fflush(file.get(), H5F_SCOPE_LOCAL), text("write ", path));
    finish(std::move(file), H5Fclose, text("write ", path));
}

Space make_space(std::span<const hsize_t> extent) {
    return Space(check(H5Screate_simple(static_cast<int>(extent.size()), extent.data(), nullptr),
                       "make an extent"));
}

Group make_group(hid_t at, const std::string& name) {
    return Group(check(H5Gcreate2(at, name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                       text("create group ", name)));
}

Dataset make_dataset(hid_t at, const std::string& name, hid_t type,
                     std::span<const hsize_t> extent) {
    const Properties creation = make_properties(H5P_DATASET_CREATE);
    check(H5Pset_layout(creation.get(), H5D_CONTIGUOUS), "set a layout");
    check(H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY), "set an allocation time");
    check(H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER), "set a fill time");
    const Space space = make_space(extent);
    return Dataset(check(
        H5Dcreate2(at, name.c_str(), type, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
        text("create dataset ", name)));
}

void write_part(const Dataset& dataset, const Part& part, hid_t memory_type, const void* data) {
    const std::string attempt = text("write to ", file_of(dataset));
    const Space memory = make_space(part.count);
    const Space place = select(dataset, part);
    check(H5Dwrite(dataset.get(), memory_type, memory.get(), place.get(), H5P_DEFAULT, data),
          attempt);
}

Datatype make_fp16() {
    Datatype type(check(H5Tcopy(H5T_IEEE_F32LE), "copy a type"));
    check(H5Tset_fields(type.get(), 15, 10, 5, 0, 10), "make a 16-bit type");
    check(H5Tset_size(type.get(), 2), "make a 16-bit type");
    check(H5Tset_ebias(type.get(), 15), "make a 16-bit type");
    return type;
}

void write_values(hid_t at, const std::string& name, hid_t type, std::span<const hsize_t> extent,
                  const void* values) {
    const Space space = make_space(extent);
    Dataset dataset(check(
        H5Dcreate2(at, name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
        text("create dataset ", name)));
    const std::string attempt = text("write dataset ", name);
    if (std::ranges::find(extent, hsize_t{0}) == extent.end()) {
        check(H5Dwrite(dataset.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), attempt);
    }
    finish(std::move(dataset), H5Dclose, attempt);
}

void write_strings(hid_t at, const std::string& name, const std::vector<std::string>& values) {
    const std::vector<const char*> pointers = pointers_to(values);
    const std::vector<hsize_t> extent = {values.size()};
    write_values(at, name, make_string_type().get(), extent, pointers.data());
}

void write_attribute(hid_t object, const std::string& name, hid_t type, const void* value) {
    const Space space(check(H5Screate(H5S_SCALAR), "make an extent"));
    write_attribute_of(object, name, type, space, value);
}

void write_texts(hid_t object, const std::string& name, const std::vector<std::string>& values) {
    const std::vector<const char*> pointers = pointers_to(values);
    const std::vector<hsize_t> extent = {values.size()};
    write_attribute_of(object, name, make_string_type().get(), make_space(extent), pointers.data());
}

void write_text(hid_t object, const std::string& name, const std::string& value) {
    const char* pointer = value.c_str();
    write_attribute(object, name, make_string_type().get(), static_cast<const void*>(&pointer));
}

Dataset open_dataset(const File& file, const std::string& path) {
    return Dataset(
        check(H5Dopen2(file.get(), path.c_str(), H5P_DEFAULT), text("open dataset ", path)));
}

}  // namespace nearstep::h5
