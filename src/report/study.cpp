#include "report/study.hpp"

#include "report/findings.hpp"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <utility>

namespace nearstep::report {

namespace {

using nlohmann::json;

// Copying and printing a value recurses once per level.
constexpr int kMostDepth = 64;

struct Column {
    const char* key;
    const char* name;
    const char* format;
};

json columns_json(std::initializer_list<Column> columns) {
    json out = json::array();
    for (const Column& column : columns) {
        out.push_back({{"key", column.key}, {"name", column.name}, {"format", column.format}});
    }
    return out;
}

// The value at a path of keys; null if there is none.
json at(const json& object, std::initializer_list<const char*> path) {
    const json* here = &object;
    for (const char* key : path) {
        if (!here->is_object() || !here->contains(key)) {
            return {};
        }
        here = &(*here)[key];
    }
    return *here;
}

bool is_array_with(const json& content, const char* key) {
    return content.is_array() && !content.empty() && content[0].is_object() &&
           content[0].contains(key);
}

json row_of_compare(const json& run) {
    return {{"origin", "measured"},
            {"column", at(run, {"column"})},
            {"devices", at(run, {"devices"})},
            {"forward_s", at(run, {"phases_s", "forward"})},
            {"backward_s", at(run, {"phases_s", "backward"})},
            {"update_s", at(run, {"phases_s", "update"})},
            {"modelled_update_s", at(run, {"predicted_s", "update"})},
            {"step_s", at(run, {"phases_s", "total"})},
            {"modelled_step_s", at(run, {"predicted_s", "total"})},
            {"over_base", at(run, {"speedup_over_base"})},
            {"modelled_over_base", at(run, {"predicted_speedup_over_base"})},
            {"over_first_base", at(run, {"speedup_over_first_base"})}};
}

json study_of_compare(const json& runs) {
    json rows = json::array();
    for (const json& run : runs) {
        rows.push_back(row_of_compare(run));
    }
    return {{"title", "Modes side by side (nearstep compare)"},
            {"commit", at(runs[0], {"commit"})},
            {"config", at(runs[0], {"config"})},
            {"site", at(runs[0], {"site"})},
            {"rows", rows},
            {"columns", columns_json({{"column", "column", ""},
                                      {"devices", "devices", ""},
                                      {"forward_s", "forward s", ".3f"},
                                      {"backward_s", "backward s", ".3f"},
                                      {"update_s", "update s", ".3f"},
                                      {"modelled_update_s", "expected", ".3f"},
                                      {"step_s", "step s", ".3f"},
                                      {"modelled_step_s", "expected", ".3f"},
                                      {"over_base", "over base", ".2f"},
                                      {"modelled_over_base", "expected", ".2f"}})},
            {"plots",
             {{{"title", "Seconds of a step"},
               {"x", "devices"},
               {"y", {"step_s", "modelled_step_s"}},
               {"series", "column"},
               {"x_name", "devices"},
               {"y_name", "seconds"}},
              {{"title", "Speed-up over base with the fewest devices"},
               {"x", "devices"},
               {"y", {"over_first_base"}},
               {"series", "column"},
               {"x_name", "devices"},
               {"y_name", "speed-up"}}}}};
}

json row_of_plan(const json& plan) {
    const json choice = at(plan, {"choice"});
    return {{"origin", "modelled"},
            {"series", "plan"},
            {"nodes", at(plan, {"nodes"})},
            {"devices", at(plan, {"devices"})},
            {"step_s", at(plan, {"step_s"})},
            {"tokens_per_s", at(plan, {"tokens_per_s"})},
            {"T_fwd", at(plan, {"terms_s", "T_fwd"})},
            {"T_bwd", at(plan, {"terms_s", "T_bwd"})},
            {"T_opt", at(plan, {"terms_s", "T_opt"})},
            {"T_opt_n", at(plan, {"replication", "T_opt_n"})},
            {"T_total_n", at(plan, {"replication", "T_total_n"})},
            {"binds", at(plan, {"binds"})},
            {"parameters", at(choice, {"parameters"})},
            {"gradients", at(choice, {"gradients"})},
            {"optimizer", at(choice, {"optimizer"})},
            {"codec", at(choice, {"codec"})},
            {"refused", at(plan, {"refused"})}};
}

json study_of_plans(const json& plans) {
    json rows = json::array();
    for (const json& plan : plans) {
        rows.push_back(row_of_plan(plan));
    }
    return {{"title", "Plans (nearstep plan)"},
            {"notes", {"Everything here is modelled: formulas over the rates of the site file."}},
            {"rows", rows},
            {"columns", columns_json({{"nodes", "nodes", ""},
                                      {"devices", "CSDs", ""},
                                      {"step_s", "step s", ".3g"},
                                      {"tokens_per_s", "tokens/s", ".4g"},
                                      {"T_fwd", "T_fwd", ".3g"},
                                      {"T_bwd", "T_bwd", ".3g"},
                                      {"T_opt", "T_opt", ".3g"},
                                      {"T_opt_n", "T_opt,n", ".3g"},
                                      {"T_total_n", "T_total,n", ".3g"},
                                      {"binds", "binds", ""},
                                      {"parameters", "P", ""},
                                      {"gradients", "G", ""},
                                      {"optimizer", "OS", ""},
                                      {"codec", "codec", ""},
                                      {"refused", "no plan because", ""}})},
            {"plots",
             {{{"title", "Tokens per second"},
               {"x", "devices"},
               {"y", {"tokens_per_s"}},
               {"series", "series"},
               {"x_name", "CSDs"},
               {"y_name", "tokens/s"},
               {"log", true}}}}};
}

json row_of_run(const File& file) {
    const json& run = file.content;
    return {{"origin", "measured"},
            {"file", file.path},
            {"commit", at(run, {"commit"})},
            {"config", at(run, {"config"})},
            {"site", at(run, {"site"})},
            {"mode", at(run, {"mode"})},
            {"ranks", at(run, {"ranks"})},
            {"devices", at(run, {"devices"})},
            {"steps", at(run, {"steps"})},
            {"tokens_per_s", at(run, {"tokens_per_s"})},
            {"forward_s", at(run, {"phases_s", "forward"})},
            {"backward_s", at(run, {"phases_s", "backward"})},
            {"update_s", at(run, {"phases_s", "update"})},
            {"hidden_s", at(run, {"phases_s", "hidden"})},
            {"modelled_update_s", at(run, {"modelled_s", "update"})},
            {"commit_s", at(run, {"phases_s", "commit"})},
            {"train_loss", at(run, {"train_loss"})},
            {"heldout_loss", at(run, {"heldout_loss"})},
            {"masters_xxh3", at(run, {"masters_xxh3"})}};
}

json empty_study_of_runs() {
    return {{"title", "Training runs (nearstep train)"},
            {"rows", json::array()},
            {"columns", columns_json({{"file", "file", ""},
                                      {"config", "config", ""},
                                      {"site", "site", ""},
                                      {"commit", "commit", ""},
                                      {"mode", "mode", ""},
                                      {"ranks", "ranks", ""},
                                      {"devices", "devices", ""},
                                      {"steps", "steps", ""},
                                      {"tokens_per_s", "tokens/s", ".4g"},
                                      {"forward_s", "forward s", ".3g"},
                                      {"backward_s", "backward s", ".3g"},
                                      {"update_s", "update s", ".3g"},
                                      {"hidden_s", "of it hidden s", ".3g"},
                                      {"modelled_update_s", "expected", ".3g"},
                                      {"commit_s", "commit s", ".3g"},
                                      {"train_loss", "loss", ".4f"},
                                      {"heldout_loss", "held-out", ".4f"},
                                      {"masters_xxh3", "masters", ""}})},
            {"plots", json::array()}};
}

json rows_in(const json& content) {
    const json rows = at(content, {"rows"});
    return rows.is_array() ? rows : json::array();
}

}  // namespace

json read_json(std::istream& text) {
    const auto is_kept = [](int depth, json::parse_event_t, json&) { return depth <= kMostDepth; };
    return json::parse(text, is_kept, false);
}

std::vector<Study> studies_of(const std::vector<File>& files, std::vector<std::string>& ignored) {
    std::vector<Study> studies;
    Study runs{.path = "", .content = empty_study_of_runs()};
    for (const File& file : files) {
        const json& content = file.content;
        if (at(content, {"kind"}) == "nearstep experiment") {
            std::vector<std::string> findings = findings_of_steps(rows_in(content));
            std::ranges::move(findings_of_plans(rows_in(content)), std::back_inserter(findings));
            studies.push_back({file.path, content, std::move(findings)});
        } else if (is_array_with(content, "column")) {
            const json study = study_of_compare(content);
            studies.push_back({file.path, study, findings_of_steps(study["rows"])});
        } else if (is_array_with(content, "choices_costed")) {
            studies.push_back({file.path, study_of_plans(content), findings_of_plans(content)});
        } else if (content.is_object() && content.contains("masters_xxh3")) {
            runs.content["rows"].push_back(row_of_run(file));
        } else {
            ignored.push_back(file.path);
        }
    }
    if (!runs.content["rows"].empty()) {
        studies.insert(studies.begin(), std::move(runs));
    }
    return studies;
}

}  // namespace nearstep::report
