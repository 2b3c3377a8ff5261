// Line plots as inline SVG.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nearstep::report {

// Where a number comes from. Each looks different wherever it stands.
enum class Origin { measured, modelled, simulated, published };

// "measured", ... as rows and style sheets name them.
std::string_view name_of(Origin origin);
// Unknown names are measured ones: a row without an origin is of a run.
Origin parse_origin(std::string_view name);

struct Point {
    double x = 0;
    double y = 0;
};

struct Line {
    std::string name;
    Origin origin = Origin::measured;
    std::vector<Point> points = {};  // ascending x
};

struct Plot {
    std::string title = {};
    std::string x_name = {};
    std::string y_name = {};
    bool is_log = false;  // both axes; points at 0 or below are left out
    std::vector<Line> lines = {};
};

// Lines of the same name have the same colour; empty without a point.
std::string to_svg(const Plot& plot);

}  // namespace nearstep::report
