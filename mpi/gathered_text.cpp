// Brings each rank's text to all ranks. Used by restarts, the state and the Python binding.
#include "mpi/gathered_text.hpp"

#include "base/packed.hpp"

#include <algorithm>
#include <cstdint>
#include <span>

namespace nearstep::mpi {

namespace {

constexpr int kTag = 3;

// Sends a text to one rank and receives another's.
std::string swap_text(const mpi::Communicator& world, const std::string& mine, int to, int from) {
    const std::uint64_t out = mine.size();
    std::uint64_t in = 0;
    mpi::Request received =
        world.start_receive(std::as_writable_bytes(std::span(&in, 1)), from, kTag);
    mpi::Request sent = world.start_send(std::as_bytes(std::span(&out, 1)), to, kTag);
    received.wait();
    std::string theirs(in, 0);
    received = world.start_receive(std::as_writable_bytes(std::span(theirs)), from, kTag);
    mpi::Request followed = world.start_send(std::as_bytes(std::span(mine)), to, kTag);
    sent.wait();
    followed.wait();
    received.wait();
    return theirs;
}

}  // namespace

void SharedTexts::add(const std::string& text, std::uint32_t count) {
    const auto [place, is_new] =
        places_.try_emplace(text, static_cast<std::uint32_t>(texts_.size()));
    if (is_new) {
        texts_.push_back(text);
    }
    if (runs_.empty() || runs_.back().text != place->second) {
        runs_.push_back({place->second, 0});
    }
    runs_.back().count += count;
    size_ += count;
}

std::string SharedTexts::packed_first(std::size_t count) const {
    SharedTexts first;
    for (const Run& run : runs_) {
        const auto taken = static_cast<std::uint32_t>(std::min<std::size_t>(run.count, count));
        if (taken == 0) {
            break;
        }
        first.add(texts_[run.text], taken);
        count -= taken;
    }
    return packed(first.texts_, first.runs_);
}

void SharedTexts::add_packed(std::string_view bytes) {
    std::vector<std::string> texts;
    std::vector<Run> runs;
    unpack(bytes, texts, runs);
    for (const Run& run : runs) {
        add(texts.at(run.text), run.count);
    }
}

std::vector<std::string> SharedTexts::all() const {
    std::vector<std::string> texts;
    texts.reserve(size_);
    for (const Run& run : runs_) {
        texts.insert(texts.end(), run.count, texts_[run.text]);
    }
    return texts;
}

// In each round a rank passes on what it knows, so that it knows the texts of twice as many ranks
// afterwards: its own, and those of the ranks before it.
std::vector<std::string> gather_text(const mpi::Communicator& world, const std::string& mine) {
    const int ranks = world.size();
    SharedTexts known;
    known.add(mine);
    for (int distance = 1; distance < ranks; distance *= 2) {
        const auto passed = static_cast<std::size_t>(std::min(distance, ranks - distance));
        known.add_packed(swap_text(world, known.packed_first(passed),
                                   (world.rank() + distance) % ranks,
                                   (world.rank() - distance + ranks) % ranks));
    }
    std::vector<std::string> texts = known.all();
    // The first text is this rank's, and the one behind it that of the rank before.
    std::ranges::reverse(texts);
    std::rotate(texts.begin(), texts.begin() + (ranks - 1 - world.rank()), texts.end());
    return texts;
}

std::vector<std::string> texts_at(const mpi::Communicator& world, const std::vector<int>& distances,
                                  const std::string& mine) {
    const int ranks = world.size();
    std::vector<std::string> texts;
    texts.reserve(distances.size());
    for (const int distance : distances) {
        const int away = distance % ranks;
        texts.push_back(away == 0 ? mine
                                  : swap_text(world, mine, (world.rank() - away + ranks) % ranks,
                                              (world.rank() + away) % ranks));
    }
    return texts;
}

}  // namespace nearstep::mpi
