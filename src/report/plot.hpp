// Line plots as inline SVG.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nearstep::report {

// Where a number comes from. Each origin has its own look everywhere.
enum class Origin { measured, modelled, simulated, published };

// "measured", ... as rows and style sheets name them.
std::string_view name_of(Origin origin);
// Unknown names count as measured: a row without an origin comes from a run.
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
    bool is_log = false;  // both axes; points at or below 0 are left out
    std::vector<Line> lines = {};
};

// Lines with the same name get the same colour. Empty if there are no points.
std::string to_svg(const Plot& plot);

}  // namespace nearstep::report
