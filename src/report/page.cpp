#include "report/page.hpp"

#include "base/version.hpp"
#include "report/html.hpp"
#include "report/plot.hpp"

#include <algorithm>
#include <sstream>
#include <utility>

namespace nearstep::report {

namespace {

using nlohmann::json;

constexpr std::string_view kStyle = R"(<style>
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1250px; padding: 0 1em; color: #222 }
h2 { border-bottom: 1px solid #bbb; margin-top: 2em } .meta { color: #666; font-size: 12px }
table { border-collapse: collapse; font-size: 12.5px; margin: .7em 0; display: block; overflow-x: auto }
th { background: #eee; text-align: right; padding: 3px 8px; white-space: nowrap }
td { text-align: right; padding: 2px 8px; border-bottom: 1px solid #e4e4e4; white-space: nowrap }
.measured { color: #111; font-weight: 600 }
.modelled { color: #1b5fa8; font-style: italic; background: #eef4fb }
.simulated { color: #7a3fa0; background: #f6effa; text-decoration: underline dotted }
.published { color: #8a5a00; background: #fdf5e3 }
svg polyline { background: none } svg text { font-size: 11px; fill: #333 } svg .title { font-weight: 600 }
.grid { stroke: #e3e3e3 } figure { display: inline-block; margin: .4em }
.findings li { margin: .25em 0 } .legend span { padding: 1px 7px; margin-right: .8em }
</style>)";

std::string text_of(const json& object, const char* key) {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) {
        return "";
    }
    return found->is_string() ? found->get<std::string>() : found->dump();
}

json list_in(const json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_array() ? *found : json::array();
}

// The origin of the value of `key` in the row.
Origin origin_of(const std::string& key, const json& row) {
    for (const Origin origin : {Origin::modelled, Origin::simulated}) {
        if (key.rfind(std::string(name_of(origin)) + "_", 0) == 0) {
            return origin;
        }
    }
    return parse_origin(text_of(row, "origin"));
}

void write_cell(const json& row, const json& column, std::ostream& out) {
    const std::string key = text_of(column, "key");
    const auto found = row.find(key);
    if (found == row.end() || found->is_null()) {
        out << "<td>-</td>";
    } else if (found->is_number()) {
        // Integers without a format are counts or settings, not results, so they have no origin.
        const std::string format = text_of(column, "format");
        const bool is_count = format.empty() && found->is_number_integer();
        out << "<td class='" << (is_count ? "" : name_of(origin_of(key, row))) << "'>"
            << (is_count ? found->dump() : formatted(found->get<double>(), format)) << "</td>";
    } else {
        out << "<td>" << escaped(text_of(row, key.c_str())) << "</td>";
    }
}

void write_table(const json& study, std::ostream& out) {
    const json columns = list_in(study, "columns");
    out << "<table><tr>";
    for (const json& column : columns) {
        out << "<th>" << escaped(text_of(column, "name")) << "</th>";
    }
    out << "</tr>\n";
    for (const json& row : list_in(study, "rows")) {
        if (!row.is_object()) {
            continue;
        }
        out << "<tr>";
        for (const json& column : columns) {
            write_cell(row, column, out);
        }
        out << "</tr>\n";
    }
    out << "</table>\n";
}

// The line of `key` over the rows of one series.
Line line_of(const std::string& series, const std::string& key, const json& plot,
             const json& rows) {
    Line line{.name = series};
    const std::string x = text_of(plot, "x");
    for (const json& row : rows) {
        if (!row.is_object() || text_of(row, text_of(plot, "series").c_str()) != series ||
            !row.contains(x) || !row.contains(key) || !row[x].is_number() ||
            !row[key].is_number()) {
            continue;
        }
        line.origin = origin_of(key, row);
        line.points.push_back({row[x].get<double>(), row[key].get<double>()});
    }
    std::sort(line.points.begin(), line.points.end(),
              [](const Point& one, const Point& other) { return one.x < other.x; });
    return line;
}

Plot plot_of(const json& spec, const json& rows) {
    Plot plot{.title = text_of(spec, "title"),
              .x_name = text_of(spec, "x_name"),
              .y_name = text_of(spec, "y_name"),
              .is_log = text_of(spec, "log") == "true"};
    std::vector<std::string> names;
    for (const json& row : rows) {
        const std::string name =
            row.is_object() ? text_of(row, text_of(spec, "series").c_str()) : "";
        if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) {
            names.push_back(name);
        }
    }
    for (const std::string& name : names) {
        for (const json& key : list_in(spec, "y")) {
            Line line = line_of(name, key.is_string() ? key.get<std::string>() : "", spec, rows);
            if (!line.points.empty()) {
                plot.lines.push_back(std::move(line));
            }
        }
    }
    return plot;
}

void write_list(const std::vector<std::string>& lines, std::string_view style, std::ostream& out) {
    if (lines.empty()) {
        return;
    }
    out << "<ul class='" << style << "'>\n";
    for (const std::string& line : lines) {
        out << "<li>" << escaped(line) << "</li>\n";
    }
    out << "</ul>\n";
}

void write_study(const Study& study, std::ostream& out) {
    const json& content = study.content;
    out << "<h2>" << escaped(text_of(content, "title")) << "</h2>\n<p class='meta'>";
    for (const auto& [key, name] :
         {std::pair("config", "config"), std::pair("site", "site"), std::pair("commit", "commit"),
          std::pair("cores", "cores"), std::pair("command", "command")}) {
        if (const std::string value = text_of(content, key); !value.empty()) {
            out << name << " <b>" << escaped(value) << "</b> ";
        }
    }
    out << escaped(study.path) << "</p>\n";
    write_list(study.findings, "findings", out);
    for (const json& plot : list_in(content, "plots")) {
        if (const std::string svg = to_svg(plot_of(plot, list_in(content, "rows"))); !svg.empty()) {
            out << "<figure>" << svg << "</figure>\n";
        }
    }
    write_table(content, out);
    std::vector<std::string> notes;
    for (const json& note : list_in(content, "notes")) {
        if (note.is_string()) {
            notes.push_back(note.get<std::string>());
        }
    }
    write_list(notes, "meta", out);
}

}  // namespace

std::string make_page(const std::string& folder, const std::vector<Study>& studies,
                      const std::vector<std::string>& ignored) {
    std::ostringstream out;
    out << "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'><title>nearstep: "
        << escaped(folder) << "</title>\n"
        << kStyle << "</head><body>\n<h1>nearstep: " << escaped(folder)
        << "</h1>\n<p class='meta'>written by nearstep " << escaped(version()) << ", commit "
        << escaped(commit())
        << "</p>\n<p class='legend'><span class='measured'>measured: solid lines</span>"
           "<span class='modelled'>modelled by formulas: dashed</span>"
           "<span class='simulated'>simulated: dotted</span>"
           "<span class='published'>published by others: dash-dotted</span></p>\n";
    out << "<h2>What bounds a step, and what to add next</h2>\n";
    for (const Study& study : studies) {
        if (!study.findings.empty()) {
            out << "<p class='meta'>" << escaped(text_of(study.content, "title")) << "</p>\n";
            write_list(study.findings, "findings", out);
        }
    }
    for (const Study& study : studies) {
        write_study({.path = study.path, .content = study.content}, out);
    }
    if (!ignored.empty()) {
        out << "<h2>Not read</h2>\n<p class='meta'>JSON files that are not results of "
               "nearstep:</p>\n";
        write_list(ignored, "meta", out);
    }
    out << "</body></html>\n";
    return out.str();
}

}  // namespace nearstep::report
