#include "report/page.hpp"

#include "report/html.hpp"
#include "report/plot.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace nearstep::report {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

json experiment() {
    return {{"kind", "nearstep experiment"},
            {"title", "A <title>"},
            {"commit", "abc"},
            {"config", "c.toml"},
            {"notes", {"a note"}},
            {"columns",
             {{{"key", "devices"}, {"name", "devices"}, {"format", ""}},
              {{"key", "step_s"}, {"name", "step"}, {"format", ".2f"}},
              {{"key", "modelled_step_s"}, {"name", "expected"}, {"format", ".2f"}}}},
            {"rows",
             {{{"origin", "measured"},
               {"column", "x"},
               {"devices", 1},
               {"step_s", 2.0},
               {"modelled_step_s", 1.5}},
              {{"origin", "measured"},
               {"column", "x"},
               {"devices", 2},
               {"step_s", 1.0},
               {"modelled_step_s", nullptr}},
              {{"origin", "simulated"}, {"column", "y"}, {"devices", 2}, {"step_s", 0.75}}}},
            {"plots",
             {{{"title", "Steps"},
               {"x", "devices"},
               {"y", {"step_s", "modelled_step_s"}},
               {"series", "column"},
               {"x_name", "n"},
               {"y_name", "s"}}}}};
}

std::string page_of(const std::vector<File>& files) {
    std::vector<std::string> ignored;
    const std::vector<Study> studies = studies_of(files, ignored);
    return make_page("some/folder", studies, ignored);
}

TEST(Page, ShowsWhereEachNumberComesFrom) {
    const std::string page = page_of({{"x.json", experiment()}});
    EXPECT_THAT(page, HasSubstr("<td class=''>1</td><td class='measured'>2.00</td>"
                                "<td class='modelled'>1.50</td>"));
    EXPECT_THAT(page, HasSubstr("<td class='simulated'>0.75</td><td>-</td>"));
    EXPECT_THAT(page, HasSubstr("<polyline class='measured'"));
    EXPECT_THAT(page, HasSubstr("<polyline class='modelled'"));
    EXPECT_THAT(page, HasSubstr("A &lt;title&gt;"));
    EXPECT_THAT(page, HasSubstr("commit <b>abc</b>"));
    EXPECT_THAT(page, HasSubstr("<li>a note</li>"));
}

TEST(Page, LoadsNothing) {
    const std::string page = page_of({{"x.json", experiment()}});
    for (const char* word : {"<script", "<link", "<img", "src=", "@import", "url("}) {
        EXPECT_THAT(page, Not(HasSubstr(word)));
    }
}

TEST(Studies, AreOfRunsComparisonsAndPlans) {
    const json run = {{"masters_xxh3", "00ff"},
                      {"config", "tiny"},
                      {"phases_s", {{"update", 0.5}}},
                      {"modelled_s", {{"update", 0.25}}}};
    const json comparison = {{{"column", "base"},
                              {"devices", 2},
                              {"phases_s", {{"update", 1.0}, {"total", 3.0}}},
                              {"predicted_s", {{"total", 2.5}}}}};
    const json plan = {{{"choices_costed", 3}, {"nodes", 1}, {"binds", "GPU"}}};
    std::vector<std::string> ignored;
    const std::vector<Study> studies = studies_of({{"a/run.json", run},
                                                   {"b.json", comparison},
                                                   {"c.json", plan},
                                                   {"d.json", {{"x", 1}}},
                                                   {"e.json", json::array()}},
                                                  ignored);
    ASSERT_EQ(studies.size(), 3U);
    EXPECT_EQ(studies[0].content["rows"][0]["modelled_update_s"], 0.25);
    EXPECT_EQ(studies[1].content["rows"][0]["modelled_step_s"], 2.5);
    EXPECT_THAT(studies[2].findings, ElementsAre(HasSubstr("GPU binds")));
    EXPECT_THAT(ignored, ElementsAre("d.json", "e.json"));
}

// Users may edit the files, so any value may have another type.
TEST(Page, BearsValuesOfOtherTypes) {
    const json whole = experiment();
    for (const auto& [key, value] : whole.items()) {
        if (key == "kind") {
            continue;
        }
        for (const json& wrong : {json(), json(3), json("text"), json::array({1, "x", nullptr}),
                                  json::object({{"k", 1}}), json::array({json::object()})}) {
            json broken = whole;
            broken[key] = wrong;
            EXPECT_THAT(page_of({{"x.json", broken}}), HasSubstr("</html>")) << key << wrong;
        }
    }
}

// Text nested so deep that copying its value would overflow the stack.
TEST(Page, LeavesOutWhatIsNestedTooDeep) {
    const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
    std::istringstream text(R"({"kind": "nearstep experiment", "title": )" + deep + "}");
    EXPECT_THAT(page_of({{"x.json", read_json(text)}}), HasSubstr("</html>"));
}

TEST(APlot, IsEmptyWithoutPoints) {
    EXPECT_EQ(to_svg({.title = "t", .lines = {{.name = "x"}}}), "");
    EXPECT_EQ(to_svg({.is_log = true, .lines = {{.name = "x", .points = {{0, 1}, {1, -1}}}}}), "");
}

TEST(APlot, PutsGreaterValuesFurtherRightAndHigher) {
    const std::string svg = to_svg({.lines = {{.name = "x", .points = {{1, 1}, {3, 5}}}}});
    double x1 = 0;
    double y1 = 0;
    double x2 = 0;
    double y2 = 0;
    ASSERT_EQ(std::sscanf(svg.c_str() + svg.find("points='"), "points='%lf,%lf %lf,%lf", &x1, &y1,
                          &x2, &y2),
              4);
    EXPECT_LT(x1, x2);
    EXPECT_GT(y1, y2);
}

TEST(APlot, OfOneValueHasAPlaceForIt) {
    for (const bool is_log : {false, true}) {
        EXPECT_THAT(to_svg({.is_log = is_log, .lines = {{.name = "x", .points = {{4, 4}}}}}),
                    Not(HasSubstr("nan")));
    }
}

TEST(APlot, HasFewTicksWhereValuesAreTooNearEachOtherForAny) {
    EXPECT_LT(to_svg({.lines = {{.name = "x", .points = {{1e16, 1}, {1e16 + 2, 2}}}}}).size(),
              20'000U);
}

TEST(Numbers, AreWrittenAsPythonWritesThem) {
    EXPECT_EQ(formatted(1.23456, ".2f"), "1.23");
    EXPECT_EQ(formatted(123456, ".3g"), "1.23e+05");
    EXPECT_EQ(formatted(0.00012, ".2e"), "1.20e-04");
    EXPECT_EQ(formatted(0.5, "%s%n"), "0.5");
    EXPECT_EQ(formatted(std::nan(""), ".2f"), "-");
}

}  // namespace
}  // namespace nearstep::report
