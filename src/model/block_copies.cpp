// Copies blocks to the network's device. Used by parameter_store.cpp and block_inputs.cpp.
#include "model/block_copies.hpp"

#include "base/error.hpp"
#include "model/torch_types.hpp"

#include <ATen/ATen.h>

#include <utility>

namespace nearstep::model {

namespace {

class DirectCopies final : public feed::BlockCopies {
public:
    explicit DirectCopies(CopySettings settings) : settings_(std::move(settings)) {}

    void start(int block, int slot) override {
        const std::span<const std::byte> bytes = settings_.source(block);
        const std::span<std::byte> room = settings_.slots.at(static_cast<std::size_t>(slot));
        expects(bytes.size() <= room.size(), "a block fits into its slot");
        const auto count = static_cast<std::int64_t>(bytes.size());
        at::from_blob(room.data(), {count},
                      at::TensorOptions(at::kByte).device(torch_device(settings_.device)))
            .copy_(at::from_blob(const_cast<std::byte*>(bytes.data()), {count},
                                 at::TensorOptions(at::kByte)));
        if (settings_.copied_bytes != nullptr) {
            *settings_.copied_bytes += bytes.size();
        }
    }
    void wait_for(int /*slot*/) override {}
    void release(int /*slot*/) override {}

private:
    CopySettings settings_;
};

class StreamedCopies final : public feed::BlockCopies {
public:
    explicit StreamedCopies(CopySettings settings)
        : settings_(std::move(settings)),
          // Other ranks wait for this rank's parts.
          copies_(settings_.joint.ranks > 1 ? memory::StreamPriority::high
                                            : memory::StreamPriority::usual),
          arrived_(settings_.slots.size()),
          released_(settings_.slots.size()) {
        for (memory::Event& event : released_) {  // copies wait for earlier users of the memory
            event.record(readers_);
        }
    }

    void start(int block, int slot) override {
        const auto place = static_cast<std::size_t>(slot);
        const std::span<const std::byte> bytes = settings_.source(block);
        const std::span<std::byte> room = settings_.slots.at(place);
        expects(bytes.size() <= room.size(), "a block fits into its slot");
        copies_.wait_for(released_.at(place));
        if (settings_.before) {
            settings_.before(block, copies_);
        }
        const bool is_joint = settings_.is_joint != nullptr && *settings_.is_joint;
        const std::size_t copied = is_joint ? copy_part(bytes, room) : copy_all(bytes, room);
        arrived_.at(place).record(copies_);
        if (settings_.copied_bytes != nullptr) {
            *settings_.copied_bytes += copied;
        }
    }

    void wait_for(int slot) override {
        readers_.wait_for(arrived_.at(static_cast<std::size_t>(slot)));
    }

    void release(int slot) override {
        released_.at(static_cast<std::size_t>(slot)).record(readers_);
    }

private:
    // copy_all() and copy_part() return the bytes that were copied from host memory.
    std::size_t copy_all(std::span<const std::byte> bytes, std::span<std::byte> room) const {
        copy_to_gpu(room.first(bytes.size()), bytes, copies_);
        return bytes.size();
    }

    std::size_t copy_part(std::span<const std::byte> bytes, std::span<std::byte> room) const {
        const feed::JointCopy& joint = settings_.joint;
        const std::size_t all = feed::slot_bytes(bytes.size(), joint.ranks);
        expects(all <= room.size(), "all parts of a block fit into its slot");
        const feed::BlockPart mine = feed::part_of_block(bytes.size(), joint.rank, joint.ranks);
        copy_to_gpu(room.subspan(mine.begin, mine.size()), bytes.subspan(mine.begin, mine.size()),
                    copies_);
        const std::size_t part = all / static_cast<std::size_t>(joint.ranks);
        joint.gather(room.subspan(static_cast<std::size_t>(joint.rank) * part, part),
                     room.first(all), copies_);
        return mine.size();
    }

    CopySettings settings_;
    memory::Stream copies_;
    memory::Stream readers_ = memory::Stream::of_default();
    std::vector<memory::Event> arrived_;  // one per slot
    std::vector<memory::Event> released_;
};

}  // namespace

std::unique_ptr<feed::BlockCopies> make_block_copies(CopySettings settings) {
    if (settings.device.is_gpu() && memory::gpus() > 0) {
        return std::make_unique<StreamedCopies>(std::move(settings));
    }
    return std::make_unique<DirectCopies>(std::move(settings));
}

}  // namespace nearstep::model
