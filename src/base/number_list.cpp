// Writes lists of ranks briefly. Used by manifests and where messages name ranks.
#include "base/number_list.hpp"

#include <charconv>
#include <cstdint>
#include <system_error>
#include <utility>

namespace nearstep {

namespace {

constexpr std::size_t kMostWrittenOut = 8;

// The whole word as a number from 0 on; nullopt: it is something else.
std::optional<int> number_in(std::string_view word) {
    int number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    const bool is_whole = error == std::errc() && end == word.data() + word.size();
    return is_whole && number >= 0 ? std::optional(number) : std::nullopt;
}

// Returns the words between commas. An empty list has none.
std::vector<std::string_view> words_of(std::string_view list) {
    std::vector<std::string_view> words;
    while (!list.empty()) {
        const std::size_t comma = list.find(',');
        words.push_back(list.substr(0, comma));
        if (comma == list.size() - 1) {
            words.emplace_back();  // the list ends with a comma
        }
        list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
    }
    return words;
}

std::optional<NumberRange> range_in(std::string_view word) {
    const std::size_t dash = word.find('-');
    const std::optional<int> first = number_in(word.substr(0, dash));
    const std::optional<int> last =
        dash == std::string_view::npos ? first : number_in(word.substr(dash + 1));
    return first && last && *first <= *last ? std::optional(NumberRange{*first, *last})
                                            : std::nullopt;
}

// Equal neighbours of a list.
struct Run {
    std::string_view item;
    std::size_t count = 0;
};

std::vector<Run> runs_of(const std::vector<std::string_view>& items) {
    std::vector<Run> runs;
    for (const std::string_view item : items) {
        if (runs.empty() || runs.back().item != item) {
            runs.push_back({item, 0});
        }
        ++runs.back().count;
    }
    return runs;
}

// The end of the runs from `begin` on that are equally long and whose items rise by one.
std::size_t end_of_rise(const std::vector<Run>& runs, std::size_t begin) {
    std::optional<int> before = number_in(runs[begin].item);
    std::size_t end = begin + 1;
    while (before && end < runs.size() && runs[end].count == runs[begin].count &&
           number_in(runs[end].item) == *before + 1) {
        before = number_in(runs[end].item);
        ++end;
    }
    return end;
}

// The items of a brief list's word, in order.
struct Word {
    std::string item;  // if it is no rise
    std::optional<NumberRange> rise = std::nullopt;
    std::size_t count = 1;  // of each item

    std::size_t items() const {
        const std::size_t numbers =
            rise ? static_cast<std::size_t>(rise->last - rise->first) + 1 : 1;
        return numbers * count;
    }
};

std::optional<Word> word_in(std::string_view written) {
    const std::size_t times = written.rfind('x');
    if (times == std::string_view::npos) {
        return written.empty() ? std::nullopt : std::optional(Word{.item = std::string(written)});
    }
    const std::string_view item = written.substr(0, times);
    const std::optional<int> count = number_in(written.substr(times + 1));
    if (item.empty() || !count || *count == 0) {
        return std::nullopt;
    }
    const bool is_rise = !number_in(item) && range_in(item);
    return Word{.item = std::string(item),
                .rise = is_rise ? range_in(item) : std::nullopt,
                .count = static_cast<std::size_t>(*count)};
}

}  // namespace

std::vector<NumberRange> ranges_of(const std::vector<int>& numbers) {
    std::vector<NumberRange> ranges;
    for (const int number : numbers) {
        if (!ranges.empty() && number - 1 == ranges.back().last) {
            ranges.back().last = number;
        } else {
            ranges.push_back({number, number});
        }
    }
    return ranges;
}

std::vector<int> numbers_in(const std::vector<NumberRange>& ranges) {
    std::vector<int> numbers;
    for (const NumberRange& range : ranges) {
        for (std::int64_t number = range.first; number <= range.last; ++number) {
            numbers.push_back(static_cast<int>(number));
        }
    }
    return numbers;
}

std::string print_ranges(const std::vector<NumberRange>& ranges) {
    std::string out;
    for (const NumberRange& range : ranges) {
        out += text(out.empty() ? "" : ",", range.first,
                    range.last == range.first ? "" : text("-", range.last));
    }
    return out;
}

std::optional<std::vector<NumberRange>> parse_ranges(std::string_view list) {
    std::vector<NumberRange> ranges;
    for (const std::string_view word : words_of(list)) {
        const std::optional<NumberRange> range = range_in(word);
        if (!range || (!ranges.empty() && range->first <= ranges.back().last)) {
            return std::nullopt;
        }
        if (!ranges.empty() && range->first == ranges.back().last + 1) {
            ranges.back().last = range->last;
        } else {
            ranges.push_back(*range);
        }
    }
    return ranges;
}

std::string name_ranks(const std::vector<int>& ranks) {
    std::vector<NumberRange> ranges;
    std::size_t named = 0;  // a range of several ranks names two of them
    std::size_t told = 0;
    for (const NumberRange& range : ranges_of(ranks)) {
        named += range.first == range.last ? 1 : 2;
        if (named > kMostNamed) {
            break;
        }
        ranges.push_back(range);
        told += static_cast<std::size_t>(range.last - range.first) + 1;
    }
    return text(ranks.size() == 1 ? "rank " : "ranks ", print_ranges(ranges),
                told == ranks.size() ? "" : text(" and ", ranks.size() - told, " more"));
}

std::optional<std::string> written_out(std::string_view list, std::size_t most) {
    std::string out;
    std::size_t items = 0;
    for (const std::string_view written : words_of(list)) {
        const std::optional<Word> word = word_in(written);
        if (!word || word->items() > most || items > most - word->items()) {
            return std::nullopt;
        }
        items += word->items();
        const NumberRange rise = word->rise.value_or(NumberRange());
        for (int number = rise.first; number <= rise.last; ++number) {
            const std::string item = word->rise ? std::to_string(number) : word->item;
            for (std::size_t i = 0; i < word->count; ++i) {
                out += (out.empty() ? "" : ",") + item;
            }
        }
    }
    return out;
}

std::string brief_list(std::string_view list) {
    const std::vector<std::string_view> items = words_of(list);
    if (items.size() <= kMostWrittenOut) {
        return std::string(list);
    }
    const std::vector<Run> runs = runs_of(items);
    std::string out;
    for (std::size_t begin = 0; begin < runs.size();) {
        const std::size_t end = end_of_rise(runs, begin);
        const std::size_t count = runs[begin].count;
        const bool is_rise = end - begin > 1;
        out += text(out.empty() ? "" : ",", runs[begin].item,
                    is_rise ? text("-", runs[end - 1].item) : "",
                    is_rise || count > 1 ? text("x", count) : "");
        begin = end;
    }
    return out;
}

}  // namespace nearstep
