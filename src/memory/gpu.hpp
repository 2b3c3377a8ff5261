// GPU memory, pinned host memory, and the order of work on both.
//
// The GPU is chosen per thread: call use_gpu() once in each thread that makes or uses these. Where
// CUDA's driver or NVRTC is missing, gpus() is 0 and everything that needs a GPU throws. Errors are
// CudaError.
#pragma once

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/handle.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

// CUDA's own types, declared here to avoid including its headers.
struct CUstream_st;
struct CUevent_st;

namespace nearstep::memory {

// GPUs that this process sees and can use.
int gpus();

// Why a GPU of this machine cannot be used, and what to do; empty where there is none.
const std::string& why_no_gpu();

void use_gpu(int gpu);

std::string name_of_gpu(int gpu);

// Whether that is the name of a part of a GPU (MIG), of which a process sees one.
bool is_part_of_gpu(std::string_view name);

// Returns the number of multiprocessors: at least as many thread blocks run at once, if each fits
// on one.
int multiprocessors_of_gpu(int gpu);

struct GpuRoom {
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
};

// Memory of the calling thread's GPU.
GpuRoom room_of_gpu();

// The GPU's PCI address in its node: the same in all processes, whatever number they give the GPU;
// below 2^53.
std::uint64_t address_of_gpu(int gpu);

// How two GPUs of this process reach each other's memory; none: they cannot.
enum class PeerLink { none, pcie, nvlink };
PeerLink link_between(int gpu, int other);

// Whether the address is in a GPU's own memory.
bool is_on_gpu(const void* memory);

// Waits for all work of the calling thread's GPU.
void wait_for_gpu();

// The types below call these functions. Both allocations return null for 0 bytes.
void* allocate_on_gpu(std::size_t bytes);
void* allocate_pinned(std::size_t bytes);
void free_on_gpu(void* memory) noexcept;
void free_pinned(void* memory) noexcept;
void unpin(void* memory) noexcept;
void destroy(CUstream_st* stream) noexcept;
void destroy(CUevent_st* event) noexcept;

template <void* (*kAllocate)(std::size_t), void (*kFree)(void*) noexcept>
class OwnMemory {
public:
    OwnMemory() = default;
    explicit OwnMemory(std::size_t bytes) : memory_(kAllocate(bytes)), bytes_(bytes) {}

    std::size_t size() const { return bytes_; }
    std::span<std::byte> span() { return {as<std::byte>(), bytes_}; }
    std::span<const std::byte> span() const {
        return {static_cast<const std::byte*>(memory_.get()), bytes_};
    }
    template <typename T>
    T* as() {
        return static_cast<T*>(memory_.get());
    }

private:
    Handle<void*, kFree> memory_;
    std::size_t bytes_ = 0;
};

// GPU memory, aligned to 256 bytes, not initialised. Allocated at start. The host must not read or
// write at its addresses. Throws CudaError naming the size if the GPU has too little memory.
using GpuBuffer = OwnMemory<allocate_on_gpu, free_on_gpu>;
// Host memory that the GPU accesses at the link's full speed; zero at first.
using PinnedBuffer = OwnMemory<allocate_pinned, free_pinned>;

// Pins host memory owned by someone else during this object's life. If pinning fails, copies are
// slower but correct.
class PinnedRange {
public:
    PinnedRange() = default;
    explicit PinnedRange(std::span<const std::byte> memory);

    bool is_pinned() const { return static_cast<bool>(range_); }

private:
    Handle<void*, unpin> range_;
};

// True if the GPU reaches this host memory at its own address. Looks at the first byte.
bool is_pinned(std::span<const std::byte> memory);

class Stream;

// How a thread waits for an event: busy, or asleep, which wakes it some microseconds later.
enum class EventWait { spins, sleeps };

// A point in a stream's work; reused from step to step.
class Event {
public:
    explicit Event(EventWait way = EventWait::spins);

    void record(const Stream& stream);
    // Refers to the last record(); true before the first one.
    bool is_over() const;
    void wait() const;
    // Seconds from `earlier` to this event; both must be over.
    double seconds_since(const Event& earlier) const;

    CUevent_st* handle() const { return event_.get(); }

private:
    Handle<CUevent_st*, destroy> event_;
};

enum class StreamPriority { usual, high };

// Work that runs in order. It does not wait for the default stream, nor the default stream for it.
class Stream {
public:
    explicit Stream(StreamPriority priority = StreamPriority::usual);
    // A stream that someone else owns and keeps; null: the default stream, which PyTorch uses. The
    // default stream and other Streams do not wait for each other.
    static Stream borrowed(CUstream_st* handle) {
        return {Handle<CUstream_st*, destroy>(), handle};
    }
    static Stream of_default() { return borrowed(nullptr); }

    void wait() const;
    // Later work in this stream waits, on the GPU, for the event.
    void wait_for(const Event& event) const { wait_for(event.handle()); }
    void wait_for(CUevent_st* event) const;

    CUstream_st* handle() const { return handle_; }

private:
    Stream(Handle<CUstream_st*, destroy> owned, CUstream_st* handle)
        : owned_(std::move(owned)), handle_(handle) {}

    Handle<CUstream_st*, destroy> owned_;
    CUstream_st* handle_ = nullptr;
};

// The functions below copy in stream order. Both sizes are equal; both sides must live until the
// copy is done.
void copy_to_gpu(std::span<std::byte> gpu, std::span<const std::byte> host, const Stream& stream);
void copy_to_host(std::span<std::byte> host, std::span<const std::byte> gpu, const Stream& stream);
void copy_on_gpu(std::span<std::byte> to, std::span<const std::byte> from, const Stream& stream);
void fill_with_zeros(std::span<std::byte> gpu, const Stream& stream);

// to = factor * from in stream order, both on the GPU. `from` holds to.size() elements of `dtype`,
// aligned to their size.
void convert_on_gpu(std::span<float> to, const void* from, Dtype dtype, float factor,
                    const Stream& stream);

// sums = one + other in stream order, all on the GPU. Both hold sums.size() elements, aligned to
// their size; `one` or `other` may be `sums`.
void add_on_gpu(std::span<float> sums, const void* one, Dtype one_dtype, const void* other,
                Dtype other_dtype, const Stream& stream);

// A digest of memory on the GPU in stream order: *digest is in GPU memory, and equal for equal
// bytes on one kind of machine. `bytes` is a multiple of 2. Not for other programs to compare with.
void digest_on_gpu(const void* memory, std::size_t bytes, std::uint64_t* digest,
                   const Stream& stream);

}  // namespace nearstep::memory
