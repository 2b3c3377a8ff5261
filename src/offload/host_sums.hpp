// Adds gradients to sums in host memory, on threads of its own. Used by python/binding/sums.cpp.
#pragma once

#include "base/dtype.hpp"
#include "base/executor.hpp"
#include "shard/gradient.hpp"

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace nearstep::offload {

// Writes the sum of the parts, which have equally many elements, to `sums`. They are added in their
// order, and each sum of two is rounded to `dtype`. The first part may be the sums themselves, or
// narrower and at the end of their memory: no sum is written where a value is read later.
void add_on_host(std::span<const shard::GradientPart> parts, Dtype dtype, void* sums);

// Memory that gradients take for a while, first fit. Use from one thread at a time.
class GradientRoom {
public:
    explicit GradientRoom(std::span<std::byte> memory) : memory_(memory) {}

    // Returns memory that is aligned as the room is; null if there is none.
    std::byte* take(std::size_t bytes);
    void give_back(const std::byte* memory);

private:
    std::span<std::byte> memory_;
    std::map<std::size_t, std::size_t> taken_;  // the end of each gradient's memory, by its begin
};

// The sums of one rank's tensors. One thread puts gradients to a place, which is a tensor's sum;
// calls for different places may come from several threads.
class HostSums {
public:
    // `threads` begin with the room.
    explicit HostSums(int threads) : count_(threads) {}
    HostSums(const HostSums&) = delete;
    HostSums& operator=(const HostSums&) = delete;
    ~HostSums() { close(); }
    // Threads neither read nor write from here on; sums may be incomplete.
    void close();

    // Makes a place for a sum in `dtype`; returns its number. `memory` outlives this object, or
    // lives until close().
    std::size_t add_place(void* memory, Dtype dtype, std::size_t elems);
    // Gives memory for gradients that wait, which lives as long as a place's. Until then there is
    // none.
    void give_room(std::span<std::byte> memory);

    // Returns memory for a gradient that goes to add() next; null if there is none.
    std::byte* room_for(std::size_t bytes);
    // A thread adds the gradient, which lies in the room, to the place: after it has called
    // `await`, which returns when gradient and place are written. It adds all that waits for the
    // place at once. Unless `now`, the gradient waits for the next one.
    void add(std::size_t place, const std::byte* gradient, Dtype dtype, std::function<void()> await,
             bool now);

    // No thread adds to the place from here on, until the next add(). Waits for one that does.
    // Returns how many of the last gradients were not added.
    std::size_t claim(std::size_t place);
    // Call it after claim(): the value at the end of the place's memory, its first gradient or a
    // sum, has this format. Drops the gradients that were not added; their room is free when
    // `is_read` returns true.
    void set(std::size_t place, Dtype dtype, std::function<bool()> is_read);

private:
    struct Gradient {
        shard::GradientPart part;
        std::function<void()> await;
    };
    struct Place {
        void* memory = nullptr;
        Dtype dtype = Dtype::fp32;  // of sums
        Dtype value = Dtype::fp32;  // of what is there
        std::size_t elems = 0;
        std::vector<Gradient> waiting;
        bool is_queued = false;    // a thread shall add what waits
        std::size_t is_added = 0;  // gradients that one adds now
    };

    void work(Place& place);
    static void add_all(const Place& place, std::span<const Gradient> gradients);
    void check() const;
    void empty(std::span<const Gradient> gradients);

    std::mutex mutex_;
    std::condition_variable changed_;
    std::optional<GradientRoom> room_;
    std::deque<Place> places_;  // addresses stay
    // Gradients that somebody reads, and who says when not.
    std::deque<std::pair<std::vector<Gradient>, std::function<bool()>>> leaving_;
    std::exception_ptr error_;  // of a thread
    bool is_closing_ = false;
    int count_;
    std::optional<Executor> threads_;  // declared last: the threads use the other members
};

}  // namespace nearstep::offload
