// Reads the objects of an HDF5 file. Used by index.cpp, inspect.cpp and owner.cpp. The format: HDF5
// File Format Specification, version 3.0, sections II.A (superblock), IV.A.1.b (object headers) and
// IV.A.2 (messages).
#include "checkpoint/h5_reader.hpp"

#include "checkpoint/seal.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

namespace nearstep::h5 {

namespace {

// Messages of object headers.
constexpr std::uint64_t kNil = 0x00;
constexpr std::uint64_t kExtent = 0x01;
constexpr std::uint64_t kLinkInfo = 0x02;
constexpr std::uint64_t kType = 0x03;
constexpr std::uint64_t kFillValue = 0x05;
constexpr std::uint64_t kLink = 0x06;
constexpr std::uint64_t kLayout = 0x08;
constexpr std::uint64_t kGroupInfo = 0x0A;
constexpr std::uint64_t kAttribute = 0x0C;
constexpr std::uint64_t kContinuation = 0x10;
constexpr std::uint64_t kAttributeInfo = 0x15;

constexpr std::uint64_t kMostTableBytes = std::uint64_t{1} << 30;  // of what is read as a whole

constexpr bool is_set(std::uint64_t flags, std::uint64_t flag) { return (flags & flag) != 0; }

// Takes the superblock, and returns the address of the root.
std::uint64_t take_superblock(Source& source, std::uint64_t base, std::uint64_t file_bytes) {
    constexpr std::size_t kBytes = 48;
    const std::vector<std::byte> block = source.block(0, kBytes);
    Cursor fields(block);
    fields.expect("\x89HDF\r\n\x1a\n");
    const std::uint64_t version = fields.number(1);
    const std::uint64_t widths = fields.number(2);
    fields.skip(1);
    if ((version != 2 && version != 3) || widths != 0x0808 || fields.address() != base) {
        refuse_file("its superblock is another one");
    }
    fields.skip(8);
    if (fields.address() > file_bytes) {
        refuse_file("it was longer");
    }
    return fields.address();
}

void take_extent(Cursor message, Array& array) {
    if (message.number(1) != 2) {
        refuse_file("an extent has another version");
    }
    const std::uint64_t dimensions = message.number(1);
    message.skip(1);
    const std::uint64_t kind = message.number(1);  // 0: one element, 1: an array, 2: nothing
    array.elems = kind == 2 ? 0 : 1;
    for (std::uint64_t i = 0; i < dimensions; ++i) {
        const std::uint64_t length = message.number(8);
        if (length != 0 && array.elems > std::numeric_limits<std::int64_t>::max() / length) {
            refuse_file("an extent is too large");
        }
        array.elems *= length;
        array.extent.push_back(length);
    }
}

// The fields of IEEE numbers of 2, 4 and 8 bytes: offset and bits; place and bits of the exponent
// and of the mantissa; bias.
constexpr std::array<std::string_view, 3> kReals = {
    std::string_view("\0\0\x10\0\x0a\x05\0\x0a\x0f\0\0\0", 12),
    std::string_view("\0\0\x20\0\x17\x08\0\x17\x7f\0\0\0", 12),
    std::string_view("\0\0\x40\0\x34\x0b\0\x34\xff\x03\0\0", 12)};

void take_type(Cursor message, Array& array) {
    const std::uint64_t kind = message.number(1) & 0x0FU;
    const std::uint64_t bits = message.number(3);
    array.elem_bytes = static_cast<std::size_t>(message.number(4));
    const std::size_t bytes = array.elem_bytes;
    if (kind == 0 && bytes >= 1 && bytes <= 8 && std::has_single_bit(bytes) &&
        (bits == 0 || bits == 8)) {
        array.kind = bits == 0 ? Kind::natural : Kind::integer;
    } else if (kind == 1 && (bytes == 2 || bytes == 4 || bytes == 8) &&
               bits == (0x20U | (bytes * 8 - 1) << 8U) &&
               message.text(12) == kReals.at(bytes / 4)) {
        array.kind = Kind::real;
    } else if (kind == 9 && bytes == Strings::kReferenceBytes && (bits & 0x0FU) == 1) {
        array.kind = Kind::text;
    }
}

}  // namespace

StoredFile::StoredFile(const std::string& path)
    : file_(path, "The checkpoint's file",
            "put it back beside its index, or use another checkpoint."),
      source_(file_, 0) {
    std::array<std::byte, 1> first{};
    if (file_.size() > 0) {
        file_.read(0, first);
    }
    // A seal comes before the superblock.
    const std::uint64_t base = first[0] == std::byte{0x89} ? 0 : checkpoint::kSealBytes;
    source_ = Source(file_, base);
    root_ = take_superblock(source_, base, file_.size());
}

const StoredFile::Object& StoredFile::object(std::uint64_t address) {
    const auto known = objects_.find(address);
    if (known != objects_.end()) {
        return known->second;
    }
    constexpr std::size_t kMostPrefix = 34;
    const std::uint64_t prefix_bytes =
        std::min<std::uint64_t>(kMostPrefix, file_.size() - source_.place(address, 0));
    const std::vector<std::byte> block = source_.block(address, prefix_bytes);
    Cursor prefix(block);
    prefix.expect("OHDR");
    if (prefix.number(1) != 2) {
        refuse_file("an object header has another version");
    }
    const auto flags = static_cast<unsigned>(prefix.number(1));
    prefix.skip((is_set(flags, 0x20) ? 16 : 0) + (is_set(flags, 0x10) ? 4 : 0));
    const std::uint64_t bytes = prefix.number(std::size_t{1} << (flags & 3U));
    Object found;
    std::vector<std::vector<std::byte>> blocks = {
        source_.block(address + (prefix_bytes - prefix.left()), bytes)};
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        const std::vector<std::byte> messages = std::move(blocks[i]);
        take_messages(Cursor(messages), flags, found, blocks);
    }
    return objects_.emplace(address, std::move(found)).first->second;
}

void StoredFile::take_messages(Cursor messages, unsigned flags, Object& object,
                               std::vector<std::vector<std::byte>>& more) {
    const std::size_t order_bytes = is_set(flags, 0x04) ? 2 : 0;
    while (messages.left() >= 4 + order_bytes) {
        const std::uint64_t type = messages.number(1);
        const std::uint64_t bytes = messages.number(2);
        const bool is_shared = is_set(messages.number(1), 0x02);
        messages.skip(order_bytes);
        Cursor message(messages.take(bytes));
        if (is_shared) {
            refuse_file("a part of an object is kept elsewhere");
        }
        if (type == kContinuation) {
            constexpr std::size_t kAround = 4;  // the signature before, the checksum behind
            const std::uint64_t address = message.address();
            const std::uint64_t length = message.number(8);
            std::vector<std::byte> block = source_.block(address, length);
            Cursor(block).expect("OCHK");
            if (length < 2 * kAround) {
                refuse_file("an object header is cut short");
            }
            block.erase(block.begin(), block.begin() + kAround);
            block.resize(block.size() - kAround);
            more.push_back(std::move(block));
        } else {
            take_message(type, message, object);
        }
    }
}

void StoredFile::take_message(std::uint64_t type, Cursor message, Object& object) {
    switch (type) {
        case kNil:
        case kFillValue:
        case kGroupInfo:
            return;
        case kExtent:
            object.has_extent = true;
            return take_extent(message, object.array);
        case kType:
            return take_type(message, object.array);
        case kLayout:
            return take_layout(message, object);
        case kLink:
            return take_link(message, object);
        case kAttribute:
            return take_attribute(message, object);
        case kLinkInfo:
            return take_many(message, Indexed::links, object);
        case kAttributeInfo:
            return take_many(message, Indexed::attributes, object);
        default:
            refuse_file(text("an object has a message of type ", type));
    }
}

void StoredFile::take_link(Cursor message, Object& object) {
    const std::uint64_t version = message.number(1);
    const std::uint64_t flags = message.number(1);
    const std::uint64_t kind = is_set(flags, 0x08) ? message.number(1) : 0;
    if (version != 1 || kind != 0) {
        refuse_file("it leads to another file or place");
    }
    Link link;
    link.order = is_set(flags, 0x04) ? message.number(8) : 0;
    message.skip(is_set(flags, 0x10) ? 1 : 0);
    const std::uint64_t bytes = message.number(std::size_t{1} << (flags & 3U));
    const std::string name = message.text(bytes);
    link.address = message.address();
    object.links[name] = link;
}

void StoredFile::take_attribute(Cursor message, Object& object) {
    const std::uint64_t version = message.number(1);
    if (version != 3 || message.number(1) != 0) {
        refuse_file("an attribute has another version");
    }
    const std::uint64_t name_bytes = message.number(2);
    const std::uint64_t type_bytes = message.number(2);
    const std::uint64_t extent_bytes = message.number(2);
    message.skip(1);
    std::string name = message.text(name_bytes);
    name = name.substr(0, name.find('\0'));
    Array array;
    take_type(Cursor(message.take(type_bytes)), array);
    take_extent(Cursor(message.take(extent_bytes)), array);
    if (array.kind != Kind::none && array.elems <= message.left() / array.elem_bytes) {
        const std::span<const std::byte> content = message.take(array.elems * array.elem_bytes);
        array.content.assign(content.begin(), content.end());
    } else {
        array.kind = Kind::none;
    }
    object.attributes[name] = std::move(array);
}

void StoredFile::take_layout(Cursor message, Object& object) {
    const std::uint64_t version = message.number(1);
    const std::uint64_t kind = message.number(1);
    object.is_contiguous = (version == 3 || version == 4) && kind == 1;
    if (object.is_contiguous) {
        object.address = message.address();
        object.stored_bytes = message.number(8);
    }
}

// Many links or attributes lie in a heap.
void StoredFile::take_many(Cursor message, Indexed kind, Object& object) {
    message.skip(1);
    const std::uint64_t flags = message.number(1);
    if (is_set(flags, 0x01)) {
        message.skip(kind == Indexed::links ? 8 : 2);
    }
    const std::uint64_t heap = message.address();
    const std::uint64_t tree = message.address();
    if (heap != kNowhere && tree != kNowhere) {
        visit_messages(source_, heap, tree, kind, [&](std::span<const std::byte> one) {
            kind == Indexed::links ? take_link(Cursor(one), object)
                                   : take_attribute(Cursor(one), object);
        });
    }
}

const StoredFile::Link* StoredFile::find(const std::string& path) {
    std::uint64_t address = root_;
    const Link* link = nullptr;
    for (std::size_t at = 0; at <= path.size();) {
        const std::size_t end = std::min(path.find('/', at), path.size());
        const Object& group = object(address);
        const auto found = group.links.find(path.substr(at, end - at));
        if (found == group.links.end()) {
            return nullptr;
        }
        link = &found->second;
        address = link->address;
        at = end + 1;
    }
    return link;
}

const StoredFile::Object& StoredFile::object(const std::string& path) {
    if (path.empty()) {
        return object(root_);
    }
    const Link* link = find(path);
    if (link == nullptr) {
        refuse_file(text("it has no ", path));
    }
    return object(link->address);
}

bool StoredFile::is_group(const std::string& path) { return !object(path).has_extent; }

std::vector<std::string> StoredFile::names(const std::string& group) {
    std::vector<std::pair<std::uint64_t, std::string>> ordered;
    for (const auto& [name, link] : object(group).links) {
        ordered.emplace_back(link.order, name);
    }
    std::ranges::sort(ordered);
    std::vector<std::string> names;
    names.reserve(ordered.size());
    for (auto& [order, name] : ordered) {
        names.push_back(std::move(name));
    }
    return names;
}

bool StoredFile::has(const std::string& path) { return find(path) != nullptr; }

Array StoredFile::dataset(const std::string& path) {
    const Object& found = object(path);
    Array array = found.array;
    if (!found.has_extent || array.kind == Kind::none || !found.is_contiguous) {
        refuse_file(text(path, " is no table of numbers or strings in one piece"));
    }
    if (array.elems > 0) {
        if (array.elems > found.stored_bytes / array.elem_bytes) {
            refuse_file(
                text(path, " has ", array.elems, " entries and ", found.stored_bytes, " bytes"));
        }
        array.offset = source_.place(found.address, array.elems * array.elem_bytes);
    }
    return array;
}

bool StoredFile::has_attribute(const std::string& name, const std::string& of) {
    return object(of).attributes.contains(name);
}

Array StoredFile::attribute(const std::string& name, const std::string& of) {
    const Object& found = object(of);
    const auto attribute = found.attributes.find(name);
    if (attribute == found.attributes.end()) {
        refuse_file(text("it has no attribute ", name));
    }
    return attribute->second;
}

void StoredFile::read(const Array& dataset, std::uint64_t first, std::span<std::byte> to) const {
    expects(first <= dataset.elems && to.size() <= (dataset.elems - first) * dataset.elem_bytes,
            "the elements read are the dataset's");
    file_.read(dataset.offset + first * dataset.elem_bytes, to);
}

std::vector<std::byte> StoredFile::content(const Array& array, Kind kind) const {
    if (array.kind != kind) {
        refuse_file("a table or an attribute has values of another type");
    }
    if (!array.content.empty() || array.elems == 0) {
        return array.content;
    }
    if (array.elems > kMostTableBytes / array.elem_bytes) {
        refuse_file(text("a table has ", array.elems, " entries"));
    }
    std::vector<std::byte> bytes(array.elems * array.elem_bytes);
    read(array, 0, bytes);
    return bytes;
}

std::vector<std::string> StoredFile::texts(const Array& array) {
    const std::vector<std::byte> references = content(array, Kind::text);
    std::vector<std::string> texts;
    for (std::size_t at = 0; at < references.size(); at += Strings::kReferenceBytes) {
        texts.push_back(
            strings_.read(source_, std::span(references).subspan(at, Strings::kReferenceBytes)));
    }
    return texts;
}

std::vector<std::string> read_strings(StoredFile& file, const std::string& path) {
    return file.texts(file.dataset(path));
}

std::string read_text(StoredFile& file, const std::string& name) {
    const std::vector<std::string> one = file.texts(file.attribute(name));
    if (one.size() != 1) {
        refuse_file(text("its attribute ", name, " is not one text"));
    }
    return one.front();
}

}  // namespace nearstep::h5
