#include "report/plot.hpp"

#include "report/html.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

namespace nearstep::report {

namespace {

constexpr std::array<std::string_view, 4> kOrigins = {"measured", "modelled", "simulated",
                                                      "published"};
constexpr std::array<std::string_view, 4> kDashes = {"", "7 4", "2 3", "9 3 2 3"};
constexpr std::array<std::string_view, 8> kColours = {"#1f6fb2", "#d1602b", "#2b8a5b", "#8b4fb0",
                                                      "#b23a48", "#6b6b6b", "#a3801a", "#1899a6"};
constexpr double kWidth = 460;
constexpr double kHeight = 300;
constexpr double kLeft = 60;
constexpr double kTop = 28;
constexpr double kBottom = 42;

// A limit for values so close to each other that adding a step does not change them.
constexpr int kMostTicks = 12;

// One axis: maps values to positions, and has ticks.
class Axis {
public:
    Axis(double least, double most, bool is_log, double from, double to)
        : is_log_(is_log), from_(from), to_(to) {
        least_ = is_log ? std::log2(least) : least;
        most_ = is_log ? std::log2(most) : most;
        if (most_ <= least_) {
            least_ -= 0.5;
            most_ += 0.5;
        }
    }

    double place(double value) const {
        const double at = is_log_ ? std::log2(value) : value;
        return from_ + (at - least_) / (most_ - least_) * (to_ - from_);
    }

    std::vector<double> ticks() const {
        std::vector<double> ticks;
        if (is_log_) {
            const double step = std::max(1.0, std::ceil((most_ - least_) / 6));
            const double first = std::ceil(least_ - 1e-9);
            for (int i = 0; i < kMostTicks && first + i * step <= most_ + 1e-9; ++i) {
                ticks.push_back(std::exp2(first + i * step));
            }
            return ticks;
        }
        const double rough = (most_ - least_) / 5;
        const double power = std::pow(10, std::floor(std::log10(rough)));
        const double share = rough / power;
        const double step = (share > 5 ? 10 : share > 2 ? 5 : share > 1 ? 2 : 1) * power;
        const double first = std::ceil(least_ / step) * step;
        for (int i = 0; i < kMostTicks && first + i * step <= most_ + 1e-9 * step; ++i) {
            const double at = first + i * step;
            ticks.push_back(std::abs(at) < 1e-9 * step ? 0 : at);
        }
        return ticks;
    }

private:
    bool is_log_;
    double from_;
    double to_;
    double least_ = 0;
    double most_ = 1;
};

struct Bounds {
    Point least = {1e300, 1e300};
    Point most = {-1e300, -1e300};
    bool is_empty = true;
};

bool is_drawn(const Point& point, const Plot& plot) {
    return std::isfinite(point.x) && std::isfinite(point.y) &&
           (!plot.is_log || (point.x > 0 && point.y > 0));
}

Bounds bounds_of(const Plot& plot) {
    Bounds bounds;
    for (const Line& line : plot.lines) {
        for (const Point& point : line.points) {
            if (is_drawn(point, plot)) {
                bounds.is_empty = false;
                bounds.least = {std::min(bounds.least.x, point.x),
                                std::min(bounds.least.y, point.y)};
                bounds.most = {std::max(bounds.most.x, point.x), std::max(bounds.most.y, point.y)};
            }
        }
    }
    if (!plot.is_log) {
        bounds.least.y = std::min(bounds.least.y, 0.0);
    }
    return bounds;
}

void write_axes(const Plot& plot, const Axis& x, const Axis& y, std::ostream& out) {
    for (const double tick : x.ticks()) {
        out << "<line class='grid' x1='" << x.place(tick) << "' x2='" << x.place(tick) << "' y1='"
            << kTop << "' y2='" << kHeight - kBottom << "'/><text x='" << x.place(tick) << "' y='"
            << kHeight - kBottom + 14 << "' text-anchor='middle'>" << formatted(tick, ".4g")
            << "</text>\n";
    }
    for (const double tick : y.ticks()) {
        out << "<line class='grid' x1='" << kLeft << "' x2='" << kWidth - 10 << "' y1='"
            << y.place(tick) << "' y2='" << y.place(tick) << "'/><text x='" << kLeft - 5 << "' y='"
            << y.place(tick) + 4 << "' text-anchor='end'>" << formatted(tick, ".3g") << "</text>\n";
    }
    out << "<text x='" << kWidth / 2 << "' y='16' text-anchor='middle' class='title'>"
        << escaped(plot.title) << "</text><text x='" << kWidth / 2 << "' y='" << kHeight - 8
        << "' text-anchor='middle'>" << escaped(plot.x_name)
        << "</text><text transform='translate(13 " << kHeight / 2
        << ") rotate(-90)' text-anchor='middle'>" << escaped(plot.y_name) << "</text>\n";
}

void write_line(const Line& line, const Plot& plot, std::string_view colour, const Axis& x,
                const Axis& y, std::ostream& out) {
    const std::string_view dashes = kDashes.at(static_cast<std::size_t>(line.origin));
    out << "<polyline class='" << name_of(line.origin) << "' fill='none' stroke='" << colour
        << "' stroke-width='1.8' stroke-dasharray='" << dashes << "' points='";
    std::ostringstream marks;
    for (const Point& point : line.points) {
        if (is_drawn(point, plot)) {
            out << x.place(point.x) << ',' << y.place(point.y) << ' ';
            marks << "<circle cx='" << x.place(point.x) << "' cy='" << y.place(point.y)
                  << "' r='3' stroke='" << colour << "' fill='"
                  << (line.origin == Origin::measured ? colour : "white") << "'><title>"
                  << escaped(line.name) << ", " << name_of(line.origin) << ": "
                  << formatted(point.x, ".4g") << ", " << formatted(point.y, ".4g")
                  << "</title></circle>\n";
        }
    }
    out << "'/>\n" << marks.str();
}

}  // namespace

std::string_view name_of(Origin origin) { return kOrigins.at(static_cast<std::size_t>(origin)); }

Origin parse_origin(std::string_view name) {
    const auto* const found = std::find(kOrigins.begin(), kOrigins.end(), name);
    return found == kOrigins.end() ? Origin::measured
                                   : static_cast<Origin>(found - kOrigins.begin());
}

std::string to_svg(const Plot& plot) {
    const Bounds bounds = bounds_of(plot);
    if (bounds.is_empty) {
        return "";
    }
    const Axis x(bounds.least.x, bounds.most.x, plot.is_log, kLeft, kWidth - 15);
    const Axis y(bounds.least.y, bounds.most.y, plot.is_log, kHeight - kBottom, kTop + 6);
    std::ostringstream out;
    out.precision(6);
    std::vector<std::string> names;
    std::ostringstream lines;
    for (const Line& line : plot.lines) {
        auto found = std::find(names.begin(), names.end(), line.name);
        if (found == names.end()) {
            found = names.insert(names.end(), line.name);
        }
        const auto place = static_cast<std::size_t>(found - names.begin());
        write_line(line, plot, kColours.at(place % kColours.size()), x, y, lines);
    }
    const double height = kHeight + 15.0 * static_cast<double>(names.size());
    out << "<svg xmlns='http://www.w3.org/2000/svg' width='" << kWidth << "' height='" << height
        << "' viewBox='0 0 " << kWidth << ' ' << height << "'>\n";
    write_axes(plot, x, y, out);
    out << lines.str();
    for (std::size_t i = 0; i < names.size(); ++i) {
        const double at = kHeight + 15.0 * static_cast<double>(i) + 8;
        out << "<rect x='" << kLeft << "' y='" << at - 8 << "' width='14' height='8' fill='"
            << kColours.at(i % kColours.size()) << "'/><text x='" << kLeft + 20 << "' y='" << at
            << "'>" << escaped(names[i]) << "</text>\n";
    }
    out << "</svg>";
    return out.str();
}

}  // namespace nearstep::report
