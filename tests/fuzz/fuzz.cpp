// Gives a fuzz target its inputs and judges what it throws. Called by libFuzzer.
#include "fuzz.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

namespace nearstep::fuzz {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSeedsOption = "--seeds=";

// A control character would break a message's single line, or confuse a terminal.
bool is_sentence(std::string_view text) {
    const bool is_line = std::none_of(text.begin(), text.end(), [](char letter) {
        return static_cast<unsigned char>(letter) < ' ' || letter == 0x7F;
    });
    return is_line && text.size() > 1 && (text.back() == '.' || text.back() == '?');
}

class Scratch {
public:
    Scratch() {
        std::error_code unused;
        const fs::path root =
            fs::is_directory("/dev/shm", unused) ? fs::path("/dev/shm") : fs::temp_directory_path();
        path_ = (root / "nearstep-fuzz-XXXXXX").string();
        require(mkdtemp(path_.data()) != nullptr, "a scratch folder can be made");
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() {
        std::error_code unused;
        fs::remove_all(path_, unused);
    }
    const std::string& path() const { return path_; }

private:
    std::string path_;
};

}  // namespace

void require(bool holds, std::string_view what) {
    if (!holds) {
        std::cerr << "fuzz: this does not hold: " << what << "\n";
        std::abort();
    }
}

Bytes Input::take(std::size_t most) {
    const Bytes taken = rest_.first(std::min(most, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
}

std::string Input::part() {
    const auto end = std::find(rest_.begin(), rest_.end(), std::uint8_t{0});
    const Bytes taken = take(static_cast<std::size_t>(end - rest_.begin()));
    take(1);
    return {taken.begin(), taken.end()};
}

void edit(Input& input, std::span<std::byte> bytes) {
    while (!input.is_at_end() && !bytes.empty()) {
        const std::size_t at = input.number<std::uint32_t>() % bytes.size();
        const Bytes fresh = input.take(input.number<std::uint8_t>());
        const std::size_t count = std::min(fresh.size(), bytes.size() - at);
        std::memcpy(bytes.data() + at, fresh.data(), count);
    }
}

const std::string& scratch_folder() {
    static const Scratch scratch;
    return scratch.path();
}

void write_file(const std::string& path, std::string_view content) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << content;
    require(static_cast<bool>(file.flush()), "a scratch file can be written");
}

}  // namespace nearstep::fuzz

// `--seeds=FOLDER` writes the target's seeds there and exits; libFuzzer ignores such options.
extern "C" int LLVMFuzzerInitialize(int* count, char*** words) {
    using nearstep::fuzz::kSeedsOption;
    for (int i = 1; i < *count; ++i) {
        const std::string_view word = (*words)[i];
        if (word.starts_with(kSeedsOption)) {
            const std::string folder(word.substr(kSeedsOption.size()));
            std::filesystem::create_directories(folder);
            int number = 0;
            for (const std::string& seed : nearstep::fuzz::seeds()) {
                nearstep::fuzz::write_file(folder + "/seed-" + std::to_string(number++), seed);
            }
            std::exit(0);
        }
    }
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
    using nearstep::fuzz::require;
    try {
        nearstep::fuzz::read({data, bytes});
    } catch (const nearstep::ContractError& error) {
        std::cerr << error.what() << "\n";
        require(false, "what is read breaks no contract inside the program");
    } catch (const nearstep::Error& error) {
        if (!nearstep::fuzz::is_sentence(error.what())) {
            std::cerr << error.what() << "\n";
            require(false, "a refusal is a sentence on one line");
        }
    }
    return 0;
}
