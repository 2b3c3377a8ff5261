// Reads the HDF5 files that this module writes, and no others. Anybody may have written what a
// checkpoint folder holds, and HDF5's own library trusts a file: it writes behind its memory, and
// opens files that the file names. This reader takes contiguous arrays, strings and attributes.
#pragma once

#include "base/error.hpp"
#include "base/input_file.hpp"
#include "checkpoint/h5_bytes.hpp"
#include "checkpoint/h5_heap.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace nearstep::h5 {

enum class Kind : unsigned char { none, natural, integer, real, text };

// The type and shape of a dataset's or an attribute's elements.
struct Array {
    Kind kind = Kind::none;
    std::size_t elem_bytes = 0;
    std::vector<std::uint64_t> extent = {};  // empty: one element
    std::uint64_t elems = 0;
    std::uint64_t offset = 0;             // of a dataset: in the file, which has all elements
    std::vector<std::byte> content = {};  // of an attribute
};

class StoredFile {
public:
    // Throws as InputFile's constructor: PathError or ConfigError if this is no regular file that
    // can be read. Everything here throws Hdf5Error for what nearstep would not have written, and
    // IoError if the drive fails.
    explicit StoredFile(const std::string& path);
    ~StoredFile() = default;
    StoredFile(const StoredFile&) = delete;
    StoredFile& operator=(const StoredFile&) = delete;

    const InputFile& file() const { return file_; }

    // The datasets and groups of the root, or of a group, in the order in which they were made.
    std::vector<std::string> names(const std::string& group = "");
    bool has(const std::string& path);
    bool is_group(const std::string& path);
    // A dataset, such as "tensors/name".
    Array dataset(const std::string& path);
    bool has_attribute(const std::string& name, const std::string& of = "");
    // An attribute of the root, or of the dataset `of`.
    Array attribute(const std::string& name, const std::string& of = "");

    // Fills `to` with a dataset's elements from number `first` on, as they are stored.
    void read(const Array& dataset, std::uint64_t first, std::span<std::byte> to) const;
    // All elements of a dataset or an attribute, which must have this kind.
    std::vector<std::byte> content(const Array& array, Kind kind) const;
    std::vector<std::string> texts(const Array& array);

private:
    struct Link {
        std::uint64_t address = 0;
        std::uint64_t order = 0;
    };
    struct Object {
        std::map<std::string, Link> links = {};
        std::map<std::string, Array> attributes = {};
        Array array = {};
        bool has_extent = false;
        std::uint64_t address = kNowhere;  // of the elements
        std::uint64_t stored_bytes = 0;
        bool is_contiguous = false;
    };

    const Object& object(std::uint64_t address);
    const Object& object(const std::string& path);
    const Link* find(const std::string& path);
    void take_messages(Cursor messages, unsigned flags, Object& object,
                       std::vector<std::vector<std::byte>>& more);
    void take_message(std::uint64_t type, Cursor message, Object& object);
    static void take_link(Cursor message, Object& object);
    static void take_attribute(Cursor message, Object& object);
    static void take_layout(Cursor message, Object& object);
    void take_many(Cursor message, Indexed kind, Object& object);

    InputFile file_;
    Source source_;
    std::uint64_t root_ = 0;
    std::map<std::uint64_t, Object> objects_;  // by address
    Strings strings_;
};

template <typename Number>
constexpr Kind kind_of() {
    static_assert(sizeof(Number) == 8, "numbers are 64 bits wide");
    if constexpr (std::is_floating_point_v<Number>) {
        return Kind::real;
    } else {
        return std::is_signed_v<Number> ? Kind::integer : Kind::natural;
    }
}

template <typename Number>
std::vector<Number> numbers_in(const StoredFile& file, const Array& array) {
    const std::vector<std::byte> bytes = file.content(array, kind_of<Number>());
    std::vector<Number> numbers(bytes.size() / sizeof(Number));
    if (array.elem_bytes != sizeof(Number)) {
        refuse_file("its numbers are not 64 bits wide");
    }
    std::copy(bytes.begin(), bytes.end(), std::as_writable_bytes(std::span(numbers)).begin());
    return numbers;
}

template <typename Number>
std::vector<Number> read_numbers(StoredFile& file, const std::string& path) {
    return numbers_in<Number>(file, file.dataset(path));
}

template <typename Number>
Number read_number(StoredFile& file, const std::string& name, const std::string& of = "") {
    const std::vector<Number> one = numbers_in<Number>(file, file.attribute(name, of));
    if (one.size() != 1) {
        refuse_file(text("its attribute ", name, " is not one number"));
    }
    return one.front();
}

std::vector<std::string> read_strings(StoredFile& file, const std::string& path);
std::string read_text(StoredFile& file, const std::string& name);

}  // namespace nearstep::h5
