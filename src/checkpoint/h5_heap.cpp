// Reads HDF5's heaps and B-trees. Used by h5_reader.cpp. The format: HDF5 File Format
// Specification, version 3.0, sections III.A.2 (trees), III.E (global heap) and III.G (fractal
// heap).
#include "checkpoint/h5_heap.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <bit>

namespace nearstep::h5 {

namespace {

constexpr std::size_t kAddressBytes = 8;
constexpr std::uint64_t kMostDepth = 16;  // of trees; nodes have many records

// Bytes that hold a number of this size.
std::size_t width_of(std::uint64_t most) {
    return most == 0 ? 1 : (static_cast<std::size_t>(std::bit_width(most)) + 7) / 8;
}

class Tree {
public:
    using Take = std::function<void(std::span<const std::byte>)>;

    Tree(Source& source, std::uint64_t address, Indexed kind) : source_(&source), kind_(kind) {
        constexpr std::size_t kHeaderBytes = 38;
        const std::vector<std::byte> block = source.block(address, kHeaderBytes);
        Cursor header(block);
        header.expect("BTHD");
        header.skip(1);
        if (header.number(1) != static_cast<std::uint64_t>(kind)) {
            refuse_file("one of its trees is of another kind");
        }
        node_bytes_ = header.number(4);
        record_bytes_ = header.number(2);
        depth_ = header.number(2);
        header.skip(2);
        root_ = header.address();
        root_records_ = header.number(2);
        if (record_bytes_ == 0 || node_bytes_ < kNodeBytes + record_bytes_ || depth_ > kMostDepth) {
            refuse_file("one of its trees has no possible size");
        }
        const std::uint64_t in_leaf = (node_bytes_ - kNodeBytes) / record_bytes_;
        count_bytes_ = width_of(in_leaf);
        capacities_.push_back({.most = in_leaf, .bytes = 0});
        for (std::uint64_t level = 1; level <= depth_; ++level) {
            const LevelCapacity& last = capacities_.back();
            const std::uint64_t pointer = kAddressBytes + count_bytes_ + last.bytes;
            const std::uint64_t used = std::min(node_bytes_, kNodeBytes + pointer);
            const std::uint64_t in_node = (node_bytes_ - used) / (record_bytes_ + pointer);
            const std::uint64_t most = (in_node + 1) * last.most + in_node;
            capacities_.push_back({.most = most, .bytes = width_of(most)});
        }
    }

    void visit(const Take& take) {
        if (root_ != kNowhere) {
            visit(root_, root_records_, depth_, take);
        }
    }

private:
    static constexpr std::uint64_t kNodeBytes = 10;  // of a node without records

    // The capacity of the nodes below a level, and the width of a number of that size.
    struct LevelCapacity {
        std::uint64_t most = 0;
        std::size_t bytes = 0;
    };

    void visit(std::uint64_t address, std::uint64_t records, std::uint64_t level,
               const Take& take) {
        const std::vector<std::byte> block = source_->block(address, node_bytes_);
        Cursor node(block);
        node.expect(level == 0 ? "BTLF" : "BTIN");
        node.skip(1);
        if (node.number(1) != static_cast<std::uint64_t>(kind_)) {
            refuse_file("a node of its trees is of another kind");
        }
        for (std::uint64_t i = 0; i < records; ++i) {
            take(node.take(record_bytes_));
        }
        for (std::uint64_t i = 0; level > 0 && i <= records; ++i) {
            const std::uint64_t child = node.address();
            const std::uint64_t of_child = node.number(count_bytes_);
            node.skip(capacities_[level - 1].bytes);
            visit(child, of_child, level - 1, take);
        }
    }

    Source* source_;
    Indexed kind_;
    std::uint64_t node_bytes_ = 0;
    std::size_t record_bytes_ = 0;
    std::uint64_t depth_ = 0;
    std::uint64_t root_ = 0;
    std::uint64_t root_records_ = 0;
    std::size_t count_bytes_ = 0;
    std::vector<LevelCapacity> capacities_;  // by level, the leaves first
};

// Objects lie in direct blocks. The root is one, or an indirect block that leads to them: rows of
// `width` blocks, where the first two rows have blocks of the first size and each further row has
// blocks of twice the size.
class Heap {
public:
    Heap(Source& source, std::uint64_t address) : source_(&source) {
        constexpr std::size_t kHeaderBytes = 146;
        const std::vector<std::byte> block = source.block(address, kHeaderBytes);
        Cursor header(block);
        header.expect("FRHP");
        header.skip(3);
        if (header.number(2) != 0) {
            refuse_file("one of its heaps is filtered");
        }
        header.skip(1);
        const std::uint64_t most_bytes = header.number(4);
        header.skip(12 * kAddressBytes);
        width_ = header.number(2);
        first_bytes_ = header.number(8);
        const std::uint64_t most_direct = header.number(8);
        offset_bytes_ = static_cast<std::size_t>((header.number(2) + 7) / 8);
        header.skip(2);
        root_ = header.address();
        rows_ = header.number(2);
        if (!std::has_single_bit(width_) || !std::has_single_bit(first_bytes_) ||
            !std::has_single_bit(most_direct) || most_direct < first_bytes_ ||
            most_direct > kMostDirect || offset_bytes_ > 8) {
            refuse_file("one of its heaps has no possible size");
        }
        direct_rows_ = log2_of(most_direct) - log2_of(first_bytes_) + 2;
        const auto bits_in_bytes = [](std::uint64_t of) { return (log2_of(of) + 7) / 8; };
        length_bytes_ = static_cast<std::size_t>(
            std::min(bits_in_bytes(most_direct), bits_in_bytes(most_bytes)));
    }

    std::vector<std::byte> object(std::span<const std::byte> id) {
        Cursor fields(id);
        if (fields.number(1) != 0) {
            refuse_file("one of its heaps has an object outside of its blocks");
        }
        const std::uint64_t offset = fields.number(offset_bytes_);
        const std::uint64_t bytes = fields.number(length_bytes_);
        return source_->block(address_of(offset, bytes), bytes);
    }

private:
    static constexpr std::uint64_t kMostDirect = std::uint64_t{1} << 30;

    static std::uint64_t log2_of(std::uint64_t of) {
        return of == 0 ? 0 : static_cast<std::uint64_t>(std::bit_width(of)) - 1;
    }

    std::uint64_t address_of(std::uint64_t offset, std::uint64_t bytes) {
        std::uint64_t block = root_;
        std::uint64_t rows = rows_;
        std::uint64_t block_bytes = first_bytes_;
        for (bool is_direct = rows == 0; !is_direct;) {
            const std::uint64_t in_first = offset / first_bytes_ / width_;
            const std::uint64_t row = in_first == 0 ? 0 : log2_of(in_first) + 1;
            if (row >= rows) {
                break;
            }
            block_bytes = row == 0 ? first_bytes_ : first_bytes_ << (row - 1);
            const std::uint64_t before = row == 0 ? 0 : block_bytes * width_;
            const std::uint64_t column = (offset - before) / block_bytes;
            offset = (offset - before) % block_bytes;
            is_direct = row < direct_rows_;
            block = child_of(block, row * width_ + column);
            rows = is_direct ? 0 : log2_of(block_bytes) - log2_of(first_bytes_ * width_) + 1;
        }
        if (rows != 0 || block == kNowhere || bytes > block_bytes || offset > block_bytes - bytes) {
            refuse_file("one of its heaps has an object outside of its blocks");
        }
        return block + offset;
    }

    std::uint64_t child_of(std::uint64_t block, std::uint64_t entry) {
        constexpr std::size_t kPrefixBytes = 13;  // signature, version, address of the heap
        const std::vector<std::byte> prefix = source_->block(block, kPrefixBytes);
        Cursor(prefix).expect("FHIB");
        const std::vector<std::byte> child = source_->block(
            block + kPrefixBytes + offset_bytes_ + entry * kAddressBytes, kAddressBytes);
        return Cursor(child).address();
    }

    Source* source_;
    std::uint64_t width_ = 0;
    std::uint64_t first_bytes_ = 0;
    std::uint64_t direct_rows_ = 0;
    std::size_t offset_bytes_ = 0;
    std::size_t length_bytes_ = 0;
    std::uint64_t root_ = 0;
    std::uint64_t rows_ = 0;  // of the root; 0: it is a direct block
};

}  // namespace

void visit_messages(Source& source, std::uint64_t heap, std::uint64_t tree, Indexed kind,
                    const std::function<void(std::span<const std::byte>)>& take) {
    constexpr std::size_t kHashBytes = 4;
    constexpr std::size_t kAttributeIdBytes = 8;
    Heap objects(source, heap);
    Tree(source, tree, kind).visit([&](std::span<const std::byte> record) {
        Cursor fields(record);
        if (kind == Indexed::links) {
            fields.skip(kHashBytes);
        }
        take(objects.object(
            fields.take(kind == Indexed::links ? fields.left() : kAttributeIdBytes)));
    });
}

Strings::Collection Strings::open(Source& source, std::uint64_t address) {
    constexpr std::size_t kHeaderBytes = 16;
    const std::vector<std::byte> start = source.block(address, kHeaderBytes);
    Cursor header(start);
    header.expect("GCOL");
    header.skip(4);
    Collection collection{.bytes = source.block(address, header.number(8)), .objects = {}};
    Cursor rest(collection.bytes);
    rest.skip(kHeaderBytes);
    while (rest.left() >= kHeaderBytes) {
        const std::uint64_t number = rest.number(2);
        rest.skip(6);
        const std::uint64_t bytes = rest.number(8);
        if (number == 0) {
            break;  // free space
        }
        collection.objects[number] = rest.take(bytes);
        rest.skip(std::min<std::uint64_t>(rest.left(), (8 - bytes % 8) % 8));
    }
    return collection;
}

std::string Strings::read(Source& source, std::span<const std::byte> reference) {
    Cursor fields(reference);
    const std::uint64_t bytes = fields.number(4);
    const std::uint64_t address = fields.address();
    const std::uint64_t number = fields.number(4);
    if (bytes == 0) {
        return "";
    }
    auto found = collections_.find(address);
    if (found == collections_.end()) {
        found = collections_.emplace(address, open(source, address)).first;
    }
    const auto object = found->second.objects.find(number);
    if (object == found->second.objects.end() || object->second.size() != bytes) {
        refuse_file("one of its strings has another length than its place");
    }
    taken_ += bytes;
    source.place(0, taken_);  // all strings together are no longer than the file
    std::string text = Cursor(object->second).text(bytes);
    return text.substr(0, text.find('\0'));
}

}  // namespace nearstep::h5
