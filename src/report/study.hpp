// What a JSON file of nearstep holds, in one form: a table with its columns, pictures, and what
// follows for a cluster.
#pragma once

#include <nlohmann/json.hpp>

#include <istream>
#include <string>
#include <vector>

namespace nearstep::report {

// Discarded if the text is no JSON. What is nested deeper than any result is left out.
nlohmann::json read_json(std::istream& text);

struct File {
    std::string path;  // as it is named on the page
    nlohmann::json content;
};

// `content` is in the form of cluster/experiments: title, notes, rows with an origin each, columns
// {key, name, format}, plots {title, x, y, series, x_name, y_name, log}, and where they are known
// commit, config, site, command.
struct Study {
    std::string path;
    nlohmann::json content;
    std::vector<std::string> findings = {};  // what bounds a step, and what to add: sentences
};

// Of experiments, comparisons and plans a study each; the summaries of single runs share the first.
// Files that are none of these are named in `ignored`. Values may be missing or of other types than
// they should be: they are left out.
std::vector<Study> studies_of(const std::vector<File>& files, std::vector<std::string>& ignored);

}  // namespace nearstep::report
