// memory/gpu.hpp with CUDA. Used by GPU engines, codecs, feeds and exchanges.
#include "base/units.hpp"
#include "base/wording.hpp"
#include "memory/cuda_call.hpp"
#include "memory/gpu.hpp"
#include "memory/gpu_octets.cuh"

#include <algorithm>
#include <cstring>
#include <initializer_list>

namespace nearstep::memory {

void check(cudaError_t code, const Where& where) {
    if (code != cudaSuccess) {
        static_cast<void>(cudaGetLastError());  // a later check_launch() does not find this error
        throw CudaError(text("CUDA reports \"", cudaGetErrorString(code), "\" (", where.file, ":",
                             where.line, "): see the GPU's log, and start again with ",
                             Term::resume, "."));
    }
}

int gpus() {
    int count = 0;
    // A missing driver or GPU is not an error here.
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        static_cast<void>(cudaGetLastError());
        return 0;
    }
    return count;
}

void use_gpu(int gpu) { check(cudaSetDevice(gpu)); }

std::string name_of_gpu(int gpu) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, gpu));
    return static_cast<const char*>(properties.name);
}

int multiprocessors_of_gpu(int gpu) {
    int count = 0;
    check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, gpu));
    return count;
}

GpuRoom room_of_gpu() {
    GpuRoom room;
    check(cudaMemGetInfo(&room.free_bytes, &room.total_bytes));
    return room;
}

std::uint64_t address_of_gpu(int gpu) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, gpu));
    const auto domain = static_cast<std::uint64_t>(properties.pciDomainID);
    const auto bus = static_cast<std::uint64_t>(properties.pciBusID);
    return (domain << 16U) | (bus << 8U) | static_cast<std::uint64_t>(properties.pciDeviceID);
}

PeerLink link_between(int gpu, int other) {
    int can_reach = 0;
    check(cudaDeviceCanAccessPeer(&can_reach, gpu, other));
    if (can_reach == 0) {
        return PeerLink::none;
    }
    // Among links between GPUs, only NVLink has native atomics.
    int has_atomics = 0;
    check(cudaDeviceGetP2PAttribute(&has_atomics, cudaDevP2PAttrNativeAtomicSupported, gpu, other));
    return has_atomics != 0 ? PeerLink::nvlink : PeerLink::pcie;
}

bool is_on_gpu(const void* memory) {
    cudaPointerAttributes attributes{};
    check(cudaPointerGetAttributes(&attributes, memory));
    return attributes.type == cudaMemoryTypeDevice;
}

void wait_for_gpu() { check(cudaDeviceSynchronize()); }

void free_on_gpu(void* memory) noexcept { static_cast<void>(cudaFree(memory)); }
void free_pinned(void* memory) noexcept { static_cast<void>(cudaFreeHost(memory)); }
void unpin(void* memory) noexcept { static_cast<void>(cudaHostUnregister(memory)); }
void destroy(CUstream_st* stream) noexcept { static_cast<void>(cudaStreamDestroy(stream)); }
void destroy(CUevent_st* event) noexcept { static_cast<void>(cudaEventDestroy(event)); }

void* allocate_on_gpu(std::size_t bytes) {
    void* memory = nullptr;
    if (bytes > 0) {
        const cudaError_t code = cudaMalloc(&memory, bytes);
        if (code == cudaErrorMemoryAllocation) {
            throw CudaError(
                text("The GPU has no ", human_bytes(static_cast<double>(bytes)),
                     " left: use a smaller model or micro-batch, or fewer ranks on it."));
        }
        check(code);
    }
    return memory;
}

void* allocate_pinned(std::size_t bytes) {
    void* memory = nullptr;
    if (bytes > 0) {
        check(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault));
        std::memset(memory, 0, bytes);
    }
    return memory;
}

PinnedRange::PinnedRange(std::span<const std::byte> memory) {
    auto* begin = const_cast<std::byte*>(memory.data());
    if (cudaHostRegister(begin, memory.size(), cudaHostRegisterDefault) == cudaSuccess) {
        range_ = Handle<void*, unpin>(begin);
    } else {
        static_cast<void>(cudaGetLastError());
    }
}

bool is_pinned(std::span<const std::byte> memory) {
    cudaPointerAttributes attributes{};
    if (cudaPointerGetAttributes(&attributes, memory.data()) != cudaSuccess) {
        static_cast<void>(cudaGetLastError());
        return false;
    }
    return attributes.type == cudaMemoryTypeHost && attributes.devicePointer == memory.data();
}

Event::Event(EventWait way) {
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(
        &event, way == EventWait::sleeps ? cudaEventBlockingSync : cudaEventDefault));
    event_ = Handle<CUevent_st*, destroy>(event);
}

void Event::record(const Stream& stream) { check(cudaEventRecord(event_.get(), stream.handle())); }

bool Event::is_over() const {
    const cudaError_t code = cudaEventQuery(event_.get());
    if (code == cudaErrorNotReady) {
        return false;
    }
    check(code);
    return true;
}

void Event::wait() const { check(cudaEventSynchronize(event_.get())); }

double Event::seconds_since(const Event& earlier) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, earlier.event_.get(), event_.get()));
    return milliseconds / 1e3;
}

Stream::Stream(StreamPriority priority) {
    int least = 0;
    int greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                       priority == StreamPriority::high ? greatest : least));
    owned_ = Handle<CUstream_st*, destroy>(stream);
    handle_ = stream;
}

void Stream::wait() const { check(cudaStreamSynchronize(handle_)); }

void Stream::wait_for(CUevent_st* event) const { check(cudaStreamWaitEvent(handle_, event)); }

namespace {

void copy(std::span<std::byte> to, std::span<const std::byte> from, cudaMemcpyKind kind,
          const Stream& stream) {
    expects(to.size() == from.size(), "a copy has one size");
    if (!to.empty()) {
        check(cudaMemcpyAsync(to.data(), from.data(), to.size(), kind, stream.handle()));
    }
}

}  // namespace

void copy_to_gpu(std::span<std::byte> gpu, std::span<const std::byte> host, const Stream& stream) {
    copy(gpu, host, cudaMemcpyHostToDevice, stream);
}

void copy_to_host(std::span<std::byte> host, std::span<const std::byte> gpu, const Stream& stream) {
    copy(host, gpu, cudaMemcpyDeviceToHost, stream);
}

void copy_on_gpu(std::span<std::byte> to, std::span<const std::byte> from, const Stream& stream) {
    copy(to, from, cudaMemcpyDeviceToDevice, stream);
}

void fill_with_zeros(std::span<std::byte> gpu, const Stream& stream) {
    if (!gpu.empty()) {
        check(cudaMemsetAsync(gpu.data(), 0, gpu.size(), stream.handle()));
    }
}

namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kMostBlocks = 4096;

// Elements of `dtype` in GPU memory: T is float, or the bits of 16-bit values.
template <typename T>
struct Array {
    const T* elems;
    Dtype dtype;

    __device__ float at(std::size_t i) const { return widened(elems[i], dtype); }
    __device__ void octet(std::size_t first, float (&to)[kOctet]) const {
        load_widened(elems + first, dtype, to);
    }
};

template <typename T>
struct Scaled {
    Array<T> from;
    float factor;

    __device__ float at(std::size_t i) const { return factor * from.at(i); }
    __device__ void octet(std::size_t first, float (&to)[kOctet]) const {
        from.octet(first, to);
#pragma unroll
        for (float& value : to) {
            value *= factor;
        }
    }
};

template <typename T, typename U>
struct Sum {
    Array<T> one;
    Array<U> other;

    __device__ float at(std::size_t i) const { return one.at(i) + other.at(i); }
    __device__ void octet(std::size_t first, float (&to)[kOctet]) const {
        float addends[kOctet];
        one.octet(first, to);
        other.octet(first, addends);
#pragma unroll
        for (unsigned i = 0; i < kOctet; ++i) {
            to[i] += addends[i];
        }
    }
};

// Writes the values by octets if all arrays are aligned, and what remains one by one.
template <typename Values>
__global__ void write(float* to, const Values values, std::size_t count, bool is_aligned) {
    const std::size_t step = std::size_t{gridDim.x} * kThreads;
    const std::size_t thread = std::size_t{blockIdx.x} * kThreads + threadIdx.x;
    const std::size_t octets = is_aligned ? count / kOctet : 0;
    for (std::size_t octet = thread; octet < octets; octet += step) {
        float result[kOctet];
        values.octet(octet * kOctet, result);
        store(result, to + octet * kOctet);
    }
    for (std::size_t i = octets * kOctet + thread; i < count; i += step) {
        to[i] = values.at(i);
    }
}

// Blocks of a kernel whose threads take every so many elements.
unsigned blocks_for(std::size_t elems) {
    const std::size_t blocks = (elems + kThreads - 1) / kThreads;
    return static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
}

bool are_aligned(std::initializer_list<const void*> arrays) {
    return std::ranges::all_of(arrays, [](const void* array) {
        return reinterpret_cast<std::uintptr_t>(array) % (2 * kOctet) == 0;
    });
}

template <typename Values>
void launch(std::span<float> to, const Values& values, bool is_aligned, const Stream& stream) {
    const std::size_t work = is_aligned ? to.size() / kOctet + kOctet : to.size();
    write<<<blocks_for(work), kThreads, 0, stream.handle()>>>(to.data(), values, to.size(),
                                                              is_aligned);
    check_launch();
}

// Calls `use` with an Array of the right type.
template <typename Use>
void with_array(const void* elems, Dtype dtype, const Use& use) {
    if (dtype == Dtype::fp32) {
        use(Array<float>{static_cast<const float*>(elems), dtype});
    } else {
        use(Array<std::uint16_t>{static_cast<const std::uint16_t*>(elems), dtype});
    }
}

}  // namespace

void convert_on_gpu(std::span<float> to, const void* from, Dtype dtype, float factor,
                    const Stream& stream) {
    if (to.empty()) {
        return;
    }
    with_array(from, dtype, [&]<typename T>(const Array<T>& array) {
        launch(to, Scaled<T>{array, factor}, are_aligned({to.data(), from}), stream);
    });
}

void add_on_gpu(std::span<float> sums, const void* one, Dtype one_dtype, const void* other,
                Dtype other_dtype, const Stream& stream) {
    if (sums.empty()) {
        return;
    }
    with_array(one, one_dtype, [&]<typename T>(const Array<T>& first) {
        with_array(other, other_dtype, [&]<typename U>(const Array<U>& second) {
            launch(sums, Sum<T, U>{first, second}, are_aligned({sums.data(), one, other}), stream);
        });
    });
}

namespace {

// Steele and others, "Fast splittable pseudorandom number generators" (2014): its last mix.
__device__ std::uint64_t mixed(std::uint64_t word, std::uint64_t place) {
    word ^= (place + 1) * 0x9E3779B97F4A7C15U;
    word = (word ^ (word >> 30U)) * 0xBF58476D1CE4E5B9U;
    word = (word ^ (word >> 27U)) * 0x94D049BB133111EBU;
    return word ^ (word >> 31U);
}

// The sum of all words, each mixed with its place, so that their order in time has no effect.
__global__ void add_up(const std::uint16_t* words, std::size_t count, bool is_aligned,
                       std::uint64_t* digest) {
    constexpr std::size_t kWordsOfTwo = 8;
    const std::size_t step = std::size_t{gridDim.x} * kThreads;
    const std::size_t thread = std::size_t{blockIdx.x} * kThreads + threadIdx.x;
    const std::size_t pairs = is_aligned ? count / kWordsOfTwo : 0;
    const auto* pair = reinterpret_cast<const ulonglong2*>(words);
    std::uint64_t sum = 0;
    for (std::size_t i = thread; i < pairs; i += step) {
        sum += mixed(pair[i].x, 2 * i) + mixed(pair[i].y, 2 * i + 1);
    }
    for (std::size_t i = pairs * kWordsOfTwo + thread; i < count; i += step) {
        sum += mixed(words[i], count + i);
    }
    for (unsigned distance = 16; distance > 0; distance /= 2) {
        sum += __shfl_down_sync(0xFFFFFFFFU, sum, distance);
    }
    if (threadIdx.x % 32 == 0) {
        atomicAdd(reinterpret_cast<unsigned long long*>(digest), sum);
    }
}

}  // namespace

void digest_on_gpu(const void* memory, std::size_t bytes, std::uint64_t* digest,
                   const Stream& stream) {
    check(cudaMemsetAsync(digest, 0, sizeof *digest, stream.handle()));
    const std::size_t words = bytes / sizeof(std::uint16_t);
    if (words > 0) {
        add_up<<<blocks_for(words / 8 + 1), kThreads, 0, stream.handle()>>>(
            static_cast<const std::uint16_t*>(memory), words, are_aligned({memory}), digest);
        check_launch();
    }
}

}  // namespace nearstep::memory
