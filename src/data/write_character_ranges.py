"""Writes the ranges of letters, numbers and spaces as C++ to stdout.

    .venv/bin/python src/data/write_character_ranges.py > src/data/character_ranges.cpp

Letters are the general categories L*, numbers N*; spaces are the property White_Space, which is Z* and a few
control characters. The Unicode version is that of the Python that runs this.
"""
import sys
import unicodedata

CONTROL_SPACES = {*range(0x09, 0x0E), 0x85}


def class_of(code):
    major = unicodedata.category(chr(code))[0]
    if major == "Z" or code in CONTROL_SPACES:
        return "space"
    return {"L": "letter", "N": "number"}.get(major)


def ranges():
    """(first, last, class) of every run of code points of one class, ascending."""
    runs = []
    for code in range(0x110000):
        kind = class_of(code)
        if kind is None:
            continue
        if runs and runs[-1][1] == code - 1 and runs[-1][2] == kind:
            runs[-1][1] = code
        else:
            runs.append([code, code, kind])
    return runs


def main():
    lines = ["// Unicode letters, numbers and spaces. Written by write_character_ranges.py; do not edit.",
             '#include "data/character_class.hpp"', "", "#include <array>", "", "namespace nearstep::data {", "",
             f'const char* unicode_version() {{ return "{unicodedata.unidata_version}"; }}', "", "namespace {", "",
             "constexpr auto kLetter = CharacterClass::letter;", "constexpr auto kNumber = CharacterClass::number;",
             "constexpr auto kSpace = CharacterClass::space;", "", "// clang-format off"]
    runs = ranges()
    lines.append(f"constexpr std::array<CharacterRange, {len(runs)}> kRanges{{{{")
    row = "   "
    for first, last, kind in runs:
        item = f" {{{first:#x}, {last:#x}, k{kind.title()}}},"
        if len(row) + len(item) > 100:
            lines.append(row)
            row = "   "
        row += item
    lines += [row, "}};", "// clang-format on", "", "}  // namespace", "",
              "std::span<const CharacterRange> character_ranges() { return kRanges; }", "",
              "}  // namespace nearstep::data", ""]
    sys.stdout.write("\n".join(lines))


if __name__ == "__main__":
    main()
