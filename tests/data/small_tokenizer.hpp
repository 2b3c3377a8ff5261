// A small tokenizer in the form of GPT-2's files: the 256 bytes and six merges.
#pragma once

#include <fstream>
#include <string>

namespace nearstep::data {

// The start of an encoder.json; "}" is left off.
inline std::string small_entries() {
    std::string entries;
    int token = 0;
    const auto add = [&](const std::string& written) {
        const bool is_special = written == "\"" || written == "\\";
        entries += (entries.empty() ? "{\"" : ", \"") + ((is_special ? "\\" : "") + written) +
                   "\": " + std::to_string(token++);
    };
    // The code points that stand for bytes, in UTF-8.
    for (char32_t code = '!'; code < 256 + 68; ++code) {
        if (code <= '~') {
            add(std::string(1, static_cast<char>(code)));
        } else if (code >= 0xA1 && code != 0xAD) {
            add({static_cast<char>(0xC0U | code >> 6U), static_cast<char>(0x80U | (code & 0x3FU))});
        }
    }
    // The last one is " a".
    for (const char* merged : {"ab", "aa", "bc", "abc", "aaaa", "\xC4\xA0\x61"}) {
        add(merged);
    }
    return entries;
}

inline void write_small_tokenizer(const std::string& folder) {
    std::ofstream(folder + "/encoder.json") << small_entries() << "}";
    std::ofstream(folder + "/vocab.bpe")
        << "#version: 0.2\na b\na a\nb c\nab c\naa aa\n\xC4\xA0 a\n";
}

}  // namespace nearstep::data
