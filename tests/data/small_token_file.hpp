// The bytes of a small token file, as docs/formats/token-file.md describes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nearstep::data {

struct SmallTokenFile {
    std::vector<std::uint32_t> tokens = {0, 1, 2, 3, 1, 1, 2, 0, 3, 2};
    std::vector<std::string> texts = {"a", "ab", " the", "\xC3\xA4"};
    std::vector<std::uint64_t> documents = {4, 10};
    std::uint64_t width = 2;
    std::uint64_t tokenizer_digest = 77;
    std::uint64_t tokens_digest = 99;

    std::string bytes() const {
        std::string out = "nearstep tokens\n";
        std::size_t text_bytes = 0;
        for (const std::string& text : texts) {
            text_bytes += text.size();
        }
        for (const std::uint64_t number :
             {std::uint64_t{1}, width, std::uint64_t{tokens.size()},
              std::uint64_t{documents.size()}, std::uint64_t{texts.size()},
              std::uint64_t{text_bytes}, tokenizer_digest, tokens_digest}) {
            append(out, number, 8);
        }
        out.resize(4096, '\0');
        for (const std::uint32_t token : tokens) {
            append(out, token, width);
        }
        out.resize((out.size() + 7) / 8 * 8, '\0');
        for (const std::uint64_t end : documents) {
            append(out, end, 8);
        }
        std::uint64_t end = 0;
        for (const std::string& text : texts) {
            end += text.size();
            append(out, end, 8);
        }
        for (const std::string& text : texts) {
            out += text;
        }
        return out;
    }

private:
    static void append(std::string& out, std::uint64_t number, std::uint64_t bytes) {
        for (std::uint64_t i = 0; i < bytes; ++i) {
            out.push_back(static_cast<char>(number >> 8U * i));
        }
    }
};

}  // namespace nearstep::data
