// memory/gpu.hpp by CUDA's driver. Used by GPU engines, codecs, feeds and exchanges.
#include "memory/gpu.hpp"

#include "base/units.hpp"
#include "memory/cuda_driver.hpp"
#include "memory/gpu_launch.hpp"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <map>
#include <mutex>

namespace nearstep::memory {

namespace {

constexpr unsigned kPortableAndMapped = 3;  // pinned memory that every GPU reaches
constexpr unsigned kBlockingSync = 1;
constexpr unsigned kNonBlocking = 1;
constexpr int kMemoryType = 2;  // attributes of a pointer, and the types of its memory
constexpr int kDevicePointer = 3;
constexpr int kIsManaged = 8;
constexpr unsigned kHostMemory = 1;
constexpr unsigned kDeviceMemory = 2;
constexpr int kPeerHasAtomics = 3;

CudaAddress address_of(const void* memory) { return reinterpret_cast<CudaAddress>(memory); }

// The GPU's context that PyTorch uses, too. It is kept until the process ends.
CUctx_st* primary_context(const CudaDriver& driver, int gpu) {
    static std::mutex mutex;
    static std::map<int, CUctx_st*> contexts;
    const std::scoped_lock lock(mutex);
    CUctx_st*& context = contexts[gpu];
    if (context == nullptr) {
        int device = 0;
        check(driver.device(&device, gpu));
        check(driver.retain_primary_context(&context, device));
    }
    return context;
}

const CudaDriver& usable_driver() {
    const CudaDriverState& state = cuda_driver_state();
    if (state.driver == nullptr) {
        throw CudaError(
            state.obstacle.empty()
                ? "This machine has no GPU that CUDA can use: set model.device to \"cpu\"."
                : state.obstacle);
    }
    return *state.driver;
}

int attribute_of(int gpu, int attribute) {
    const CudaDriver& driver = usable_driver();
    int device = 0;
    int value = 0;
    check(driver.device(&device, gpu));
    check(driver.device_attribute(&value, attribute, device));
    return value;
}

// 0 for memory that CUDA does not know.
unsigned memory_type(const void* memory) {
    unsigned type = 0;
    return cuda_driver().pointer_attribute(&type, kMemoryType, address_of(memory)) == 0 ? type : 0;
}

// The driver for destructors, which must not throw; null if it cannot be used any more.
const CudaDriver* driver_or_none() noexcept {
    try {
        return &cuda_driver();
    } catch (const CudaError&) {
        return nullptr;
    }
}

// Gives back what a destructor has.
template <typename Function, typename Handle>
void give_back(Function CudaDriver::*function, Handle handle) noexcept {
    if (const CudaDriver* driver = driver_or_none()) {
        static_cast<void>((driver->*function)(handle));
    }
}

}  // namespace

const CudaDriver& cuda_driver() {
    thread_local bool has_context = false;
    const CudaDriver& driver = usable_driver();
    if (!has_context) {
        CUctx_st* context = nullptr;
        check(driver.current_context(&context));
        if (context == nullptr) {
            check(driver.set_current_context(primary_context(driver, 0)));
        }
        has_context = true;
    }
    return driver;
}

int gpus() { return cuda_driver_state().gpus; }

const std::string& why_no_gpu() { return cuda_driver_state().obstacle; }

void use_gpu(int gpu) {
    const CudaDriver& driver = usable_driver();
    check(driver.set_current_context(primary_context(driver, gpu)));
}

std::string name_of_gpu(int gpu) {
    const CudaDriver& driver = usable_driver();
    int device = 0;
    std::array<char, 256> name{};
    check(driver.device(&device, gpu));
    check(driver.device_name(name.data(), static_cast<int>(name.size()) - 1, device));
    return name.data();
}

bool is_part_of_gpu(std::string_view name) { return name.find(" MIG ") != std::string_view::npos; }

int multiprocessors_of_gpu(int gpu) { return attribute_of(gpu, kMultiprocessors); }

GpuRoom room_of_gpu() {
    GpuRoom room;
    check(cuda_driver().memory_info(&room.free_bytes, &room.total_bytes));
    return room;
}

std::uint64_t address_of_gpu(int gpu) {
    const auto part = [&](int attribute) {
        return static_cast<std::uint64_t>(attribute_of(gpu, attribute));
    };
    return (part(kPciDomain) << 16U) | (part(kPciBus) << 8U) | part(kPciDevice);
}

PeerLink link_between(int gpu, int other) {
    const CudaDriver& driver = usable_driver();
    int device = 0;
    int peer = 0;
    int can_reach = 0;
    check(driver.device(&device, gpu));
    check(driver.device(&peer, other));
    check(driver.can_access_peer(&can_reach, device, peer));
    if (can_reach == 0) {
        return PeerLink::none;
    }
    // Among links between GPUs, only NVLink has native atomics.
    int has_atomics = 0;
    check(driver.p2p_attribute(&has_atomics, kPeerHasAtomics, device, peer));
    return has_atomics != 0 ? PeerLink::nvlink : PeerLink::pcie;
}

bool is_on_gpu(const void* memory) {
    int is_managed = 0;
    return gpus() > 0 && memory_type(memory) == kDeviceMemory &&
           cuda_driver().pointer_attribute(&is_managed, kIsManaged, address_of(memory)) == 0 &&
           is_managed == 0;
}

void wait_for_gpu() { check(cuda_driver().synchronize()); }

void free_on_gpu(void* memory) noexcept { give_back(&CudaDriver::free, address_of(memory)); }
void free_pinned(void* memory) noexcept { give_back(&CudaDriver::free_host, memory); }
void unpin(void* memory) noexcept { give_back(&CudaDriver::unpin, memory); }
void destroy(CUstream_st* stream) noexcept { give_back(&CudaDriver::destroy_stream, stream); }
void destroy(CUevent_st* event) noexcept { give_back(&CudaDriver::destroy_event, event); }

void* allocate_on_gpu(std::size_t bytes) {
    CudaAddress memory = 0;
    if (bytes > 0) {
        const int code = cuda_driver().allocate(&memory, bytes);
        if (code == kCudaNoMemory) {
            throw CudaError(
                text("The GPU has no ", human_bytes(static_cast<double>(bytes)),
                     " left: use a smaller model or micro-batch, or fewer ranks on it."));
        }
        check(code);
    }
    return reinterpret_cast<void*>(memory);  // NOLINT(performance-no-int-to-ptr): as CUDA has it
}

void* allocate_pinned(std::size_t bytes) {
    void* memory = nullptr;
    if (bytes > 0) {
        check(cuda_driver().allocate_host(&memory, bytes, kPortableAndMapped));
        std::memset(memory, 0, bytes);
    }
    return memory;
}

PinnedRange::PinnedRange(std::span<const std::byte> memory) {
    auto* begin = const_cast<std::byte*>(memory.data());
    if (cuda_driver().pin(begin, memory.size(), kPortableAndMapped) == 0) {
        range_ = Handle<void*, nearstep::memory::unpin>(begin);
    }
}

bool is_pinned(std::span<const std::byte> memory) {
    CudaAddress on_gpu = 0;
    const CudaAddress here = address_of(memory.data());
    return gpus() > 0 && memory_type(memory.data()) == kHostMemory &&
           cuda_driver().pointer_attribute(&on_gpu, kDevicePointer, here) == 0 && on_gpu == here;
}

Event::Event(EventWait way) {
    CUevent_st* event = nullptr;
    check(cuda_driver().create_event(&event, way == EventWait::sleeps ? kBlockingSync : 0));
    event_ = Handle<CUevent_st*, destroy>(event);
}

void Event::record(const Stream& stream) {
    check(cuda_driver().record_event(event_.get(), stream.handle()));
}

bool Event::is_over() const {
    const int code = cuda_driver().query_event(event_.get());
    if (code == kCudaNotReady) {
        return false;
    }
    check(code);
    return true;
}

void Event::wait() const { check(cuda_driver().synchronize_event(event_.get())); }

double Event::seconds_since(const Event& earlier) const {
    float milliseconds = 0;
    check(cuda_driver().elapsed_time(&milliseconds, earlier.event_.get(), event_.get()));
    return milliseconds / 1e3;
}

Stream::Stream(StreamPriority priority) {
    int least = 0;
    int greatest = 0;
    check(cuda_driver().priority_range(&least, &greatest));
    CUstream_st* stream = nullptr;
    check(cuda_driver().create_stream(&stream, kNonBlocking,
                                      priority == StreamPriority::high ? greatest : least));
    owned_ = Handle<CUstream_st*, destroy>(stream);
    handle_ = stream;
}

void Stream::wait() const { check(cuda_driver().synchronize_stream(handle_)); }

void Stream::wait_for(CUevent_st* event) const {
    check(cuda_driver().wait_in_stream(handle_, event, 0));
}

void copy_to_gpu(std::span<std::byte> gpu, std::span<const std::byte> host, const Stream& stream) {
    expects(gpu.size() == host.size(), "a copy has one size");
    if (!gpu.empty()) {
        check(cuda_driver().copy_to_device(address_of(gpu.data()), host.data(), host.size(),
                                           stream.handle()));
    }
}

void copy_to_host(std::span<std::byte> host, std::span<const std::byte> gpu, const Stream& stream) {
    expects(host.size() == gpu.size(), "a copy has one size");
    if (!host.empty()) {
        check(cuda_driver().copy_to_host(host.data(), address_of(gpu.data()), gpu.size(),
                                         stream.handle()));
    }
}

void copy_on_gpu(std::span<std::byte> to, std::span<const std::byte> from, const Stream& stream) {
    expects(to.size() == from.size(), "a copy has one size");
    if (!to.empty()) {
        check(cuda_driver().copy_on_device(address_of(to.data()), address_of(from.data()),
                                           from.size(), stream.handle()));
    }
}

void fill_with_zeros(std::span<std::byte> gpu, const Stream& stream) {
    if (!gpu.empty()) {
        check(cuda_driver().fill_bytes(address_of(gpu.data()), 0, gpu.size(), stream.handle()));
    }
}

namespace {

constexpr const char* kFile = "memory/gpu_arrays.cu";
constexpr unsigned kThreads = 256;
constexpr unsigned kMostBlocks = 4096;
constexpr unsigned kOctet = 8;

// Blocks of a kernel whose threads take every so many elements.
unsigned blocks_for(std::size_t elems) {
    const std::size_t blocks = (elems + kThreads - 1) / kThreads;
    return static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
}

bool are_aligned(std::initializer_list<const void*> arrays) {
    return std::ranges::all_of(arrays, [](const void* array) {
        return reinterpret_cast<std::uintptr_t>(array) % (std::size_t{2} * kOctet) == 0;
    });
}

KernelLaunch writing(const char* kernel, std::size_t elems, bool is_aligned) {
    return {.file = kFile,
            .kernel = kernel,
            .blocks = blocks_for(is_aligned ? elems / kOctet + kOctet : elems),
            .threads = kThreads};
}

}  // namespace

void convert_on_gpu(std::span<float> to, const void* from, Dtype dtype, float factor,
                    const Stream& stream) {
    if (to.empty()) {
        return;
    }
    const bool is_aligned = are_aligned({to.data(), from});
    start_kernel(
        writing(dtype == Dtype::fp32 ? "memory::convert<float>" : "memory::convert<std::uint16_t>",
                to.size(), is_aligned),
        stream, to.data(), from, dtype, factor, to.size(), is_aligned);
}

void add_on_gpu(std::span<float> sums, const void* one, Dtype one_dtype, const void* other,
                Dtype other_dtype, const Stream& stream) {
    if (sums.empty()) {
        return;
    }
    const bool is_aligned = are_aligned({sums.data(), one, other});
    const char* const kernel =
        one_dtype == Dtype::fp32
            ? (other_dtype == Dtype::fp32 ? "memory::add<float, float>"
                                          : "memory::add<float, std::uint16_t>")
            : (other_dtype == Dtype::fp32 ? "memory::add<std::uint16_t, float>"
                                          : "memory::add<std::uint16_t, std::uint16_t>");
    start_kernel(writing(kernel, sums.size(), is_aligned), stream, sums.data(), one, one_dtype,
                 other, other_dtype, sums.size(), is_aligned);
}

void digest_on_gpu(const void* memory, std::size_t bytes, std::uint64_t* digest,
                   const Stream& stream) {
    fill_with_zeros(std::as_writable_bytes(std::span(digest, 1)), stream);
    const std::size_t words = bytes / sizeof(std::uint16_t);
    if (words > 0) {
        start_kernel({.file = kFile,
                      .kernel = "memory::add_up",
                      .blocks = blocks_for(words / 8 + 1),
                      .threads = kThreads},
                     stream, memory, words, are_aligned({memory}), digest);
    }
}

}  // namespace nearstep::memory
