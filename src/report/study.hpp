// Reads nearstep's JSON files into one form: a table with columns, plots, and what follows for a
// cluster.
#pragma once

#include <nlohmann/json.hpp>

#include <istream>
#include <string>
#include <vector>

namespace nearstep::report {

// Discarded if the text is not JSON. Values nested deeper than any result are left out.
nlohmann::json read_json(std::istream& text);

struct File {
    std::string path;  // as it is named on the page
    nlohmann::json content;
};

// `content` has the form of cluster/experiments: title, notes, rows with an origin each, columns
// {key, name, format}, plots {title, x, y, series, x_name, y_name, log}, and, where known, commit,
// config, site and command.
struct Study {
    std::string path;
    nlohmann::json content;
    std::vector<std::string> findings = {};  // what bounds a step and what to add, in sentences
};

// One study for each experiment, comparison and plan; the summaries of single runs share the first.
// All other files are named in `ignored`. Values may be missing or have wrong types; they are left
// out.
std::vector<Study> studies_of(const std::vector<File>& files, std::vector<std::string>& ignored);

}  // namespace nearstep::report
