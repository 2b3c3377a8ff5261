// Adds gradients to sums in host memory. Used by python/binding/sums.cpp.
#include "offload/host_sums.hpp"

#include "base/error.hpp"
#include "base/units.hpp"
#include "codec/codec_kernels.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

namespace nearstep::offload {

namespace {

constexpr std::size_t kAlignment = 512;  // of each gradient in a room

}  // namespace

void add_on_host(std::span<const shard::GradientPart> parts, Dtype dtype, void* sums) {
    constexpr std::size_t kAtOnce = 1024;  // in the first-level cache with a part of a gradient
    expects(!parts.empty(), "there is something to add");
    const codec::Kernels& kernels = codec::best_kernels();
    std::array<float, kAtOnce> sum{};
    std::array<std::uint16_t, kAtOnce> rounded{};
    const std::size_t elems = parts.front().elems;
    for (std::size_t first = 0; first < elems; first += kAtOnce) {
        const std::size_t count = std::min(kAtOnce, elems - first);
        for (std::size_t i = 0; i < parts.size(); ++i) {
            const auto* values =
                static_cast<const std::byte*>(parts[i].values) + first * size_bytes(parts[i].dtype);
            const auto convert = i == 0 ? kernels.widen : kernels.add_widened;
            convert(parts[i].dtype, values, sum.data(), count);
            if (dtype != Dtype::fp32 && i > 0 && i + 1 < parts.size()) {
                kernels.narrow(sum.data(), dtype, rounded.data(), count);
                kernels.widen(dtype, rounded.data(), sum.data(), count);
            }
        }
        kernels.narrow(sum.data(), dtype, static_cast<std::byte*>(sums) + first * size_bytes(dtype),
                       count);
    }
}

std::byte* GradientRoom::take(std::size_t bytes) {
    const std::size_t size = round_up(std::max<std::size_t>(bytes, 1), kAlignment);
    std::size_t begin = 0;
    for (const auto& [other, end] : taken_) {
        if (begin + size <= other) {
            break;
        }
        begin = end;
    }
    if (begin + size > memory_.size()) {
        return nullptr;
    }
    taken_.emplace(begin, begin + size);
    return memory_.data() + begin;
}

void GradientRoom::give_back(const std::byte* memory) {
    taken_.erase(static_cast<std::size_t>(memory - memory_.data()));
}

void HostSums::close() {
    std::unique_lock lock(mutex_);
    is_closing_ = true;
    changed_.wait(lock, [&] {
        return std::ranges::all_of(places_, [](const Place& of) { return of.is_added == 0; });
    });
}

std::size_t HostSums::add_place(void* memory, Dtype dtype, std::size_t elems) {
    const std::lock_guard lock(mutex_);
    Place& place = places_.emplace_back();
    place.memory = memory;
    place.dtype = place.value = dtype;
    place.elems = elems;
    return places_.size() - 1;
}

void HostSums::give_room(std::span<std::byte> memory) {
    const std::lock_guard lock(mutex_);
    expects(!room_, "gradients have one room");
    room_.emplace(memory);
    threads_.emplace(count_);
}

std::byte* HostSums::room_for(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    check();
    for (; !leaving_.empty() && leaving_.front().second(); leaving_.pop_front()) {
        empty(leaving_.front().first);
    }
    return room_ ? room_->take(bytes) : nullptr;
}

void HostSums::empty(std::span<const Gradient> gradients) {
    for (const Gradient& one : gradients) {
        room_->give_back(static_cast<const std::byte*>(one.part.values));
    }
}

void HostSums::add(std::size_t place, const std::byte* gradient, Dtype dtype,
                   std::function<void()> await, bool now) {
    const std::lock_guard lock(mutex_);
    check();
    Place& of = places_[place];
    of.waiting.push_back({{gradient, dtype, of.elems}, std::move(await)});
    if (now && !of.is_queued && of.is_added == 0) {
        of.is_queued = true;
        threads_->submit([this, &of] { work(of); }).on_complete([](const auto& /*error*/) {});
    }
}

void HostSums::work(Place& place) {
    std::unique_lock lock(mutex_);
    if (!std::exchange(place.is_queued, false) || is_closing_) {  // or claimed meanwhile
        return;
    }
    while (!place.waiting.empty() && !is_closing_ && !error_) {
        const std::vector<Gradient> gradients = std::exchange(place.waiting, {});
        place.is_added = gradients.size();
        lock.unlock();
        std::exception_ptr error;
        try {
            add_all(place, gradients);
        } catch (...) {
            error = std::current_exception();
        }
        lock.lock();
        place.is_added = 0;
        place.value = place.dtype;
        error_ = error_ ? error_ : error;
        empty(gradients);
    }
    changed_.notify_all();
}

void HostSums::add_all(const Place& place, std::span<const Gradient> gradients) {
    auto* const end = static_cast<std::byte*>(place.memory) + place.elems * size_bytes(place.dtype);
    std::vector<shard::GradientPart> parts = {
        {end - place.elems * size_bytes(place.value), place.value, place.elems}};
    for (const Gradient& one : gradients) {
        one.await();
        parts.push_back(one.part);
    }
    add_on_host(parts, place.dtype, place.memory);
}

// Rethrows what a thread has thrown.
void HostSums::check() const {
    if (error_) {
        std::rethrow_exception(error_);
    }
}

std::size_t HostSums::claim(std::size_t place) {
    std::unique_lock lock(mutex_);
    Place& of = places_[place];
    of.is_queued = false;
    changed_.wait(lock, [&] { return of.is_added == 0; });
    check();
    return of.waiting.size();
}

void HostSums::set(std::size_t place, Dtype dtype, std::function<bool()> is_read) {
    const std::lock_guard lock(mutex_);
    Place& of = places_[place];
    of.value = dtype;
    if (!of.waiting.empty()) {
        leaving_.emplace_back(std::exchange(of.waiting, {}), std::move(is_read));
    }
}

}  // namespace nearstep::offload
