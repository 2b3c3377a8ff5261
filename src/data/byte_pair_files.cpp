#include "base/digest.hpp"
#include "base/error.hpp"
#include "config/value.hpp"
#include "data/byte_pair_tokenizer.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <sstream>

namespace nearstep::data {

namespace {

constexpr std::size_t kMostTokens = std::numeric_limits<Token>::max() + std::size_t{1};

using TokenOfText = std::unordered_map<std::string, Token>;

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
    throw ConfigError(text("The tokenizer file ", path, " ", reason,
                           ": name in data.tokenizer a folder with GPT-2's encoder.json and "
                           "vocab.bpe, or \"bytes\"."));
}

std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream content;
    if (!file || !(content << file.rdbuf())) {
        refuse(path, "cannot be read");
    }
    return content.str();
}

// The code point that the files write for a byte, so that all of them can be seen (bytes_to_unicode
// in GPT-2's encoder.py): itself for visible ones of Latin-1, the others from 256 on.
std::array<char32_t, kBytes> visible_characters() {
    std::array<char32_t, kBytes> visible{};
    char32_t next = kBytes;
    for (std::size_t byte = 0; byte < kBytes; ++byte) {
        const bool is_visible =
            (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        visible.at(byte) = is_visible ? static_cast<char32_t>(byte) : next++;
    }
    return visible;
}

// Bytes from the way that the files write them. All code points in use have one or two bytes in
// UTF-8; returns false for others.
class VisibleBytes {
public:
    VisibleBytes() {
        byte_of_.fill(-1);
        const std::array<char32_t, kBytes> visible = visible_characters();
        for (std::size_t byte = 0; byte < kBytes; ++byte) {
            byte_of_.at(visible.at(byte)) = static_cast<int>(byte);
        }
    }

    bool read(const std::string& written, std::string& bytes) const {
        bytes.clear();
        for (std::size_t i = 0; i < written.size(); ++i) {
            auto code = static_cast<std::uint32_t>(static_cast<unsigned char>(written[i]));
            if (code >= 0xC0 && code < 0xE0 && i + 1 < written.size()) {
                const auto second = static_cast<unsigned char>(written[++i]);
                code = (code & 0x1FU) << 6U | (second & 0x3FU);
            } else if (code >= 0x80) {
                return false;
            }
            if (code >= byte_of_.size() || byte_of_.at(code) < 0) {
                return false;
            }
            bytes += static_cast<char>(byte_of_.at(code));
        }
        return !bytes.empty();
    }

private:
    std::array<int, 2 * kBytes> byte_of_{};
};

// Fills in tokens; returns the token of each text as the file writes it.
TokenOfText read_tokens(const std::string& path, BytePairs& pairs) {
    const auto json = nlohmann::json::parse(read_file(path), nullptr, false);
    if (!json.is_object() || json.empty()) {
        refuse(path, "is no JSON object of tokens");
    }
    if (json.size() > kMostTokens) {
        refuse(path, text("has ", json.size(), " tokens and this build takes ", kMostTokens));
    }
    const VisibleBytes visible;
    TokenOfText token_of;
    pairs.tokens.resize(json.size());
    for (const auto& [written, number] : json.items()) {
        const bool is_token = number.is_number_unsigned() &&
                              number.get<std::uint64_t>() < pairs.tokens.size() &&
                              pairs.tokens[number.get<std::size_t>()].empty();
        if (!is_token || !visible.read(written, pairs.tokens[number.get<std::size_t>()])) {
            refuse(path, text("has an entry that makes no sense (", config::on_one_line(written),
                              "), where each text has a number of its own"));
        }
        token_of[written] = number.get<Token>();
    }
    pairs.token_of_byte.resize(kBytes);
    std::size_t found = 0;
    for (std::size_t token = 0; token < pairs.tokens.size(); ++token) {
        if (pairs.tokens[token].size() == 1) {
            const auto byte = static_cast<unsigned char>(pairs.tokens[token].front());
            pairs.token_of_byte[byte] = static_cast<Token>(token);
            ++found;
        }
    }
    if (found != kBytes) {
        refuse(path, text("has tokens for ", found, " of the 256 bytes"));
    }
    return token_of;
}

void read_merges(const std::string& path, const TokenOfText& token_of, BytePairs& pairs) {
    std::istringstream lines(read_file(path));
    std::uint32_t rank = 0;
    for (std::string line; std::getline(lines, line);) {
        if (line.empty() || (rank == 0 && line.rfind("#version", 0) == 0)) {
            continue;
        }
        const std::size_t gap = line.find(' ');
        const auto token = [&](const std::string& written) {
            const auto found = token_of.find(written);
            if (gap == std::string::npos || found == token_of.end()) {
                refuse(path, text("has a line that fits no tokens of encoder.json (",
                                  config::on_one_line(line), ")"));
            }
            return found->second;
        };
        const std::string left = line.substr(0, gap);
        const std::string right = gap == std::string::npos ? "" : line.substr(gap + 1);
        pairs.merges.try_emplace(BytePairs::key_of(token(left), token(right)),
                                 Merge{rank, token(left + right)});
        ++rank;
    }
    if (rank == 0) {
        refuse(path, "has no merges");
    }
}

std::uint64_t digest_of(const BytePairs& pairs) {
    Xxh3Stream stream;
    for (const std::string& token : pairs.tokens) {
        const auto length = static_cast<std::uint64_t>(token.size());
        stream.add(std::as_bytes(std::span(&length, 1)));
        stream.add(std::as_bytes(std::span(token)));
    }
    std::vector<std::array<std::uint32_t, 3>> merges;
    merges.reserve(pairs.merges.size());
    for (const auto& [key, merge] : pairs.merges) {
        merges.push_back({merge.rank, key, merge.merged});
    }
    std::sort(merges.begin(), merges.end());
    stream.add(std::as_bytes(std::span(merges)));
    return stream.digest();
}

}  // namespace

BytePairs read_byte_pairs(const std::string& folder) {
    BytePairs pairs;
    const TokenOfText token_of = read_tokens(folder + "/encoder.json", pairs);
    read_merges(folder + "/vocab.bpe", token_of, pairs);
    pairs.digest = digest_of(pairs);
    return pairs;
}

}  // namespace nearstep::data
