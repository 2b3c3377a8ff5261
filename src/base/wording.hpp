// Words of messages that differ by who reads them: options and keys of the program, arguments and
// calls of the Python package.
#pragma once

#include <iosfwd>
#include <string>
#include <string_view>

namespace nearstep {

// The process's user interface; a tool is a command of the program's that has no run to go on with.
// A library client that chooses none reads the program's words.
enum class Client { program, tool, python };

// Call it where the process or its command starts, while no other thread words messages.
void write_messages_for(Client client);

// Words that differ between the program's and Python's messages. A message writes a Term in place
// of the literal word: text("Start anew with ", Term::fresh, ".").
enum class Term {
    resume,       // the option that resumes a run
    from,         // the option that resumes from a checkpoint, without a path
    fresh,        // the option that starts anew
    made_with,    // what fixes a run's parameters
    origin,       // before an assignment: where its value comes from
    how_to_set,   // how to write an assignment, with an example
    path,         // csd.path
    log,          // csd.log
    per_rank,     // csd.per_rank
    state,        // csd.state
    durability,   // csd.durability
    codec,        // compress.codec
    clipping,     // train.clipping
    clip_norm,    // train.clip_norm
    seed,         // train.seed
    model_dtype,  // model.dtype
    threads       // what sets the number of threads
};
constexpr int kTerms = 17;

std::string_view word(Term term);
std::ostream& operator<<(std::ostream& out, Term term);

// The reader's name of a config's key; the key itself if the client has no other.
std::string_view name_of_key(std::string_view key);

// "csd.slots=4", or in Python the argument for the key, else config={"csd.slots": 4}.
std::string assignment(std::string_view key, std::string_view value);

// "--from PATH", as the reader would write it.
std::string from_checkpoint(std::string_view path);

// Whether the reader has a run to go on with.
bool has_run();

// ", then start again with --resume", as the reader would write it; without a run, ", then start
// again".
std::string then_start_again();

// Escapes control characters as in TOML, so that the text stays on one line.
std::string on_one_line(std::string_view text);

}  // namespace nearstep
