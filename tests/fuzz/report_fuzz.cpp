// The JSON files that `nearstep report` combines into a page, including traces of a step.
#include "base/error.hpp"
#include "fuzz.hpp"
#include "report/page.hpp"

#include <sstream>

namespace nearstep::fuzz {

std::vector<std::string> seeds() {
    const std::string experiment =
        R"({"kind": "nearstep experiment", "title": "t", "notes": ["n"], "commit": "c",
 "rows": [{"origin": "measured", "column": "su", "devices": 1, "step_s": 2.5, "update_s": 1, "ranks": 2},
  {"origin": "measured", "column": "su", "devices": 2, "step_s": 1.5, "forward_s": 1, "relative_cost": 3},
  {"origin": "modelled", "series": "s", "binds": "device", "nodes": 2, "gain_if_twice_as_fast": {"device": 0.2}}],
 "columns": [{"key": "step_s", "name": "s", "format": ".3f"}, {"key": "devices", "name": "d", "format": ""}],
 "plots": [{"title": "p", "x": "devices", "y": ["step_s"], "series": "column", "log": true},
  {"title": "q", "x": "step_s", "y": ["devices"], "series": "column"}]})";
    const std::string compare =
        R"([{"column": "base", "devices": 1, "phases_s": {"forward": 1, "total": 1e17}, "speedup_over_base": 1},
 {"column": "base", "devices": 100000000000000000, "phases_s": {"forward": 1, "total": 2}, "commit": [1]}])";
    const std::string plans =
        R"([{"choices_costed": 3, "nodes": 1, "devices": 4, "step_s": 0.5, "tokens_per_s": 1e-300, "binds": "GPU",
 "terms_s": {"T_fwd": 1}, "choice": {"codec": "q4"}, "gain_if_twice_as_fast": {"GPU": 0.5}}, 3])";
    const std::string run =
        R"({"masters_xxh3": "0", "mode": "su", "ranks": 1, "tokens_per_s": 10, "phases_s": {"forward": 1}})";
    const std::string trace =
        R"({"displayTimeUnit":"ms","traceEvents":[{"name":"x","ph":"X","ts":1,"dur":2,"pid":0,"tid":1}]})";
    const std::string deep = "[" + std::string(20000, '[') + std::string(20000, ']') + "]";
    return {Output().part(experiment),
            Output().part(compare),
            Output().part(plans),
            Output().part(run).part(run).part(trace),
            Output().part(deep),
            Output().part(R"({"kind": "nearstep experiment", "title": )" + deep + "}")};
}

void read(Bytes bytes) {
    Input input(bytes);
    std::vector<std::string> ignored;
    std::vector<report::File> files;
    while (!input.is_at_end()) {
        std::istringstream text(input.part());
        nlohmann::json content = report::read_json(text);
        if (content.is_object() || content.is_array()) {
            files.push_back({"file.json", std::move(content)});
        }
    }
    const std::vector<report::Study> studies = report::studies_of(files, ignored);
    require(report::make_page("folder", studies, ignored).ends_with("</html>\n"),
            "a page has its end");
}

}  // namespace nearstep::fuzz
