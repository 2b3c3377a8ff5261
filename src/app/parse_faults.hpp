// Declares the functions that say in one sentence what is wrong with a command line.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace nearstep::app {

// A guess at what was meant, or CLI11's message and where to look.
std::string sentence_of(const CLI::App& program, const CLI::ParseError& error);

// Throws ConfigError if a list of the chosen command has an empty item, such as that of "1,,2".
void refuse_empty_items(const CLI::App& program, int argc, const char* const* argv);

}  // namespace nearstep::app
