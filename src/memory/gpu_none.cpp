// Stands in for memory/gpu.hpp's functions in a build without CUDA, where nobody calls what needs a
// GPU.
#include "memory/gpu.hpp"

namespace nearstep::memory {

namespace {

[[noreturn]] void refuse() {
    throw CudaError(
        "This program was built without CUDA: build it where nvcc is, or set model.device to "
        "\"cpu\".");
}

}  // namespace

int gpus() { return 0; }

void use_gpu(int /*gpu*/) { refuse(); }

std::string name_of_gpu(int /*gpu*/) { refuse(); }

int multiprocessors_of_gpu(int /*gpu*/) { refuse(); }

GpuRoom room_of_gpu() { refuse(); }

std::uint64_t address_of_gpu(int /*gpu*/) { refuse(); }

PeerLink link_between(int /*gpu*/, int /*other*/) { refuse(); }

bool is_on_gpu(const void* /*memory*/) { return false; }

void wait_for_gpu() { refuse(); }

// Handles are always empty.
void* allocate_on_gpu(std::size_t /*bytes*/) { refuse(); }
void* allocate_pinned(std::size_t /*bytes*/) { refuse(); }
void free_on_gpu(void* /*memory*/) noexcept {}
void free_pinned(void* /*memory*/) noexcept {}
void unpin(void* /*memory*/) noexcept {}
void destroy(CUstream_st* /*stream*/) noexcept {}
void destroy(CUevent_st* /*event*/) noexcept {}

PinnedRange::PinnedRange(std::span<const std::byte> /*memory*/) { refuse(); }

bool is_pinned(std::span<const std::byte> /*memory*/) { return false; }

Event::Event(EventWait /*way*/) { refuse(); }

void Event::record(const Stream& /*stream*/) { refuse(); }

bool Event::is_over() const { refuse(); }

void Event::wait() const { refuse(); }

double Event::seconds_since(const Event& /*earlier*/) const { refuse(); }

Stream::Stream(StreamPriority /*priority*/) { refuse(); }

void Stream::wait() const { refuse(); }

void Stream::wait_for(CUevent_st* /*event*/) const { refuse(); }

void copy_to_gpu(std::span<std::byte> /*gpu*/, std::span<const std::byte> /*host*/,
                 const Stream& /*stream*/) {
    refuse();
}

void copy_to_host(std::span<std::byte> /*host*/, std::span<const std::byte> /*gpu*/,
                  const Stream& /*stream*/) {
    refuse();
}

void copy_on_gpu(std::span<std::byte> /*to*/, std::span<const std::byte> /*from*/,
                 const Stream& /*stream*/) {
    refuse();
}

void fill_with_zeros(std::span<std::byte> /*gpu*/, const Stream& /*stream*/) { refuse(); }

void convert_on_gpu(std::span<float> /*to*/, const void* /*from*/, Dtype /*dtype*/,
                    float /*factor*/, const Stream& /*stream*/) {
    refuse();
}

void add_on_gpu(std::span<float> /*sums*/, const void* /*one*/, Dtype /*one_dtype*/,
                const void* /*other*/, Dtype /*other_dtype*/, const Stream& /*stream*/) {
    refuse();
}

void digest_on_gpu(const void* /*memory*/, std::size_t /*bytes*/, std::uint64_t* /*digest*/,
                   const Stream& /*stream*/) {
    refuse();
}

}  // namespace nearstep::memory
