// A client whose parameters lie in GPU memory. Used by tests of devices that a GPU updates.
#pragma once

#include "csd/device_fixture.hpp"
#include "csd/gpu_tensors.hpp"
#include "memory/gpu.hpp"
#include "shard/tile.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace nearstep::csd {

// A client's 16-bit parameters in GPU memory: all of the vector in three tensors, one of which is
// not aligned to an octet and ends within one.
class GpuClient {
public:
    GpuClient() : tensors_(0, kParameters, 3), memory_(kElemBytes * (kParameters + 64)) {
        constexpr std::array<std::size_t, 4> kEnds = {0, 777, 4 * shard::kTileElems + 5,
                                                      kParameters};
        constexpr std::array<std::size_t, 3> kGaps = {0, 8, 17};  // elements
        for (std::size_t i = 0; i < kGaps.size(); ++i) {
            all_.push_back({kEnds[i], kEnds[i + 1],
                            memory_.span().data() + kElemBytes * (kEnds[i] + kGaps[i])});
        }
    }

    // For the next update. The tensors have this vector, or have been written since.
    GpuTensors* tensors(std::vector<std::byte> vector, bool are_written) {
        if (are_written) {
            std::ranges::fill(vector, std::byte{0x55});
        }
        for (const GpuTensor& tensor : all_) {
            const std::size_t bytes = kElemBytes * (tensor.end - tensor.begin);
            copy_to_gpu({tensor.memory, bytes},
                        std::span(vector).subspan(kElemBytes * tensor.begin, bytes), stream_);
        }
        const auto says = static_cast<std::byte>(are_written);
        copy_to_gpu(are_written_.span(), {&says, 1}, stream_);
        unused_.record(stream_);
        stream_.wait();
        tensors_.use(all_, unused_.handle(), are_written_.as<bool>());
        tensors_.forget();
        return &tensors_;
    }

    // The vector with the newest parameters.
    std::vector<std::byte> completed(std::vector<std::byte> vector) const {
        for (const GpuTensor& tensor : all_) {
            std::vector<std::byte> here(kElemBytes * (tensor.end - tensor.begin));
            copy_to_host(here, {tensor.memory, here.size()}, stream_);
            stream_.wait();
            for (std::size_t i = 0; i < here.size(); ++i) {
                const std::size_t at = kElemBytes * tensor.begin + i;
                if (tensors_.have(at / kElemBytes / shard::kTileElems)) {
                    vector[at] = here[i];
                }
            }
        }
        return vector;
    }

    bool has_any() const { return tensors_.have_any(); }

private:
    static constexpr std::size_t kElemBytes = 2;

    GpuTensors tensors_;
    memory::GpuBuffer memory_;
    memory::GpuBuffer are_written_{1};
    std::vector<GpuTensor> all_;
    memory::Stream stream_;
    memory::Event unused_;
};

}  // namespace nearstep::csd
