#include "data/word_encoder.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <utility>

namespace nearstep::data {

namespace {

// Longer words are rarely seen twice.
constexpr std::size_t kLongestKnown = 64;

}  // namespace

void WordEncoder::append(std::span<const std::uint8_t> word, std::vector<Token>& out) {
    if (word.size() == 1) {
        out.push_back(pairs_.token_of_byte[word.front()]);
        return;
    }
    if (word.size() > kLongestKnown) {
        merge_pairs(word, out);
        return;
    }
    const std::string_view key(reinterpret_cast<const char*>(word.data()), word.size());
    const auto [found, is_new] = places_.try_emplace(key);
    Place& place = found->second;
    if (is_new) {
        place.begin = known_.size();
        merge_pairs(word, known_);
        place.count = known_.size() - place.begin;
    }
    const auto first = known_.begin() + static_cast<std::ptrdiff_t>(place.begin);
    out.insert(out.end(), first, first + static_cast<std::ptrdiff_t>(place.count));
}

void WordEncoder::merge_pairs(std::span<const std::uint8_t> word, std::vector<Token>& out) {
    expects(word.size() < kNone, "a word is shorter than 4 GiB");
    const auto count = static_cast<std::uint32_t>(word.size());
    nodes_.resize(count);
    candidates_.clear();
    for (std::uint32_t i = 0; i < count; ++i) {
        nodes_[i] = {.token = pairs_.token_of_byte[word[i]],
                     .previous = i == 0 ? kNone : i - 1,
                     .next = i + 1 == count ? kNone : i + 1};
    }
    for (std::uint32_t i = 0; i < count; ++i) {
        consider(i);
    }
    while (!candidates_.empty()) {
        const Candidate best = candidates_.front();
        std::pop_heap(candidates_.begin(), candidates_.end(), is_behind);
        candidates_.pop_back();
        if (!is_up_to_date(best)) {
            continue;
        }
        Node& left = nodes_[best.left_node];
        Node& right = nodes_[left.next];
        left.token = best.merge.merged;
        left.next = right.next;
        right.is_gone = true;
        if (left.next != kNone) {
            nodes_[left.next].previous = best.left_node;
        }
        consider(best.left_node);
        if (left.previous != kNone) {
            consider(left.previous);
        }
    }
    for (std::uint32_t i = 0; i != kNone; i = nodes_[i].next) {
        out.push_back(nodes_[i].token);
    }
}

// Puts the pair of this node and the next one into the heap, if there is a merge for it.
void WordEncoder::consider(std::uint32_t left_node) {
    const Node& left = nodes_[left_node];
    if (left.next == kNone) {
        return;
    }
    const Token right = nodes_[left.next].token;
    if (const auto merge = pairs_.find(left.token, right)) {
        candidates_.push_back({*merge, left_node, left.token, right});
        std::push_heap(candidates_.begin(), candidates_.end(), is_behind);
    }
}

bool WordEncoder::is_up_to_date(const Candidate& candidate) const {
    const Node& left = nodes_[candidate.left_node];
    return !left.is_gone && left.token == candidate.left && left.next != kNone &&
           nodes_[left.next].token == candidate.right;
}

bool WordEncoder::is_behind(const Candidate& a, const Candidate& b) {
    return std::pair(a.merge.rank, a.left_node) > std::pair(b.merge.rank, b.left_node);
}

}  // namespace nearstep::data
