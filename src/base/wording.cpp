// The words of each client for the terms in a message. Used where messages are written.
#include "base/wording.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <ostream>

namespace nearstep {

namespace {

struct Wording {
    std::string_view program;
    std::string_view python;
};

// The words are in the order of Term.
constexpr std::array kWordings = {Wording{"--resume", "opt.resume()"},
                                  Wording{"--from", "opt.resume(checkpoint=...)"},
                                  Wording{"--fresh", "fresh=True"},
                                  Wording{"config", "model"},
                                  Wording{"--set", "given"},
                                  Wording{"--set KEY=VALUE, as in --set train.steps=10",
                                          R"(config={KEY: VALUE}, as in config={"csd.slots": 4})"},
                                  Wording{"csd.path", "path"},
                                  Wording{"csd.log", "log"},
                                  Wording{"csd.per_rank", "devices"},
                                  Wording{"csd.state", "state"},
                                  Wording{"csd.durability", "durability"},
                                  Wording{"compress.codec", "codec"},
                                  Wording{"train.clipping", "clipping"},
                                  Wording{"train.clip_norm", "clip_norm"},
                                  Wording{"train.seed", "seed"},
                                  Wording{"model.dtype", "the parameters' dtype"},
                                  Wording{"OMP_NUM_THREADS", "torch.set_num_threads()"}};
static_assert(kWordings.size() == kTerms);

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): a process has one reader.
Client reader = Client::program;

std::string_view for_reader(const Wording& wording) {
    return reader == Client::python ? wording.python : wording.program;
}

}  // namespace

void write_messages_for(Client client) { reader = client; }

std::string_view word(Term term) {
    return for_reader(kWordings.at(static_cast<std::size_t>(term)));
}

std::ostream& operator<<(std::ostream& out, Term term) { return out << word(term); }

std::string_view name_of_key(std::string_view key) {
    const auto* const found = std::ranges::find(kWordings, key, &Wording::program);
    return found == kWordings.end() ? key : for_reader(*found);
}

std::string assignment(std::string_view key, std::string_view value) {
    const std::string_view name = name_of_key(key);
    const bool is_in_config = reader == Client::python && name == key;
    std::string out = is_in_config ? "config={\"" : "";
    out += name;
    out += is_in_config ? "\": " : "=";
    out += value;
    return is_in_config ? out + "}" : out;
}

std::string from_checkpoint(std::string_view path) {
    std::string out = reader == Client::python ? "opt.resume(checkpoint=\"" : "--from ";
    out += path;
    return reader == Client::python ? out + "\")" : out;
}

bool has_run() { return reader != Client::tool; }

std::string then_start_again() {
    std::string out = ", then start again";
    if (has_run()) {
        out += " with ";
        out += word(Term::resume);
    }
    return out;
}

std::string on_one_line(std::string_view text) {
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    constexpr char kDelete = 0x7F;
    std::string out;
    for (const char letter : text) {
        const auto code = static_cast<unsigned char>(letter);
        if (code < ' ' || letter == kDelete) {
            out += "\\u00";
            out += kDigits[code >> 4U];
            out += kDigits[code & 0xFU];
        } else {
            out += letter;
        }
    }
    return out;
}

}  // namespace nearstep
