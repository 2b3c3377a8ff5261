"""Line charts as SVG, the same bytes from the same numbers, for bench/tables. Standard library only."""

import html
import math

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 470, 330, 58, 12, 34, 48  # of a panel, and its margins
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#7f7f7f")
DASHES = {"measured": "", "modelled": ' stroke-dasharray="5 3"'}


class Series:
    """A line. `points`: (x, y); `band`: (x, least, most); `style`: measured, modelled, or points alone."""

    def __init__(self, label, points, band=(), style="measured", colour=None):
        self.label, self.points, self.band, self.style, self.colour = label, sorted(points), sorted(band), style, colour


class Panel:
    """Axes with series. `level`: a y with a horizontal line, and an axis from zero; the names are at the left then,
    else at the right.
    """

    def __init__(self, title, x_name, y_name, series, level=None):
        self.title, self.x_name, self.y_name, self.series, self.level = title, x_name, y_name, series, level


def ticks(least, most):
    """About five round numbers."""
    raw = (most - least) / 5 or 1
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    return [round(step * k, 10) for k in range(math.floor(least / step), math.ceil(most / step) + 1)]


def text(x, y, what, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{html.escape(what)}</text>'


def path(points, more):
    return f'<path d="M{" L".join(f"{x:.1f} {y:.1f}" for x, y in points)}"{more}/>'


def panel_svg(panel, left):
    xs = [x for one in panel.series for x, _ in one.points]
    ys = [
        y
        for one in panel.series
        for y in [*(y for _, y in one.points), *(edge for _, *edges in one.band for edge in edges)]
    ]
    ys += [0, panel.level] if panel.level is not None else []
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))
    right, bottom = left + WIDTH - RIGHT, HEIGHT - BOTTOM

    def at(x, y):
        return (
            left + LEFT + (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0]) * (WIDTH - LEFT - RIGHT),
            bottom - (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * (bottom - TOP),
        )

    out = [
        text((left + LEFT + right) / 2, 18, panel.title, ' text-anchor="middle" font-weight="bold"'),
        text((left + LEFT + right) / 2, HEIGHT - 10, panel.x_name, ' text-anchor="middle"'),
        text(
            left + 14,
            (TOP + bottom) / 2,
            panel.y_name,
            f' text-anchor="middle" transform="rotate(-90 {left + 14} {(TOP + bottom) / 2:.1f})"',
        ),
    ]
    for y in y_ticks:
        height = at(x_ticks[0], y)[1]
        out += [
            path([(left + LEFT, height), (right, height)], ' stroke="#ddd"'),
            text(left + LEFT - 5, height + 4, f"{y:g}", ' text-anchor="end"'),
        ]
    out += [text(at(x, y_ticks[0])[0], bottom + 16, f"{x:g}", ' text-anchor="middle"') for x in x_ticks]
    if panel.level is not None:
        out.append(path([at(x_ticks[0], panel.level), at(x_ticks[-1], panel.level)], ' stroke="#000" stroke-width="1"'))
    legend = []
    for number, one in enumerate(panel.series):
        colour = one.colour or COLOURS[number % len(COLOURS)]
        if one.band:
            edge = [at(x, most) for x, _, most in one.band] + [at(x, least) for x, least, _ in reversed(one.band)]
            out.append(path(edge, f' fill="{colour}" fill-opacity="0.2" stroke="none"'))
        if one.style == "points":
            out += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'
                for x, y in (at(*point) for point in one.points)
            ]
        else:
            out.append(
                path(
                    [at(*point) for point in one.points],
                    f' fill="none" stroke="{colour}" stroke-width="1.6"{DASHES[one.style]}',
                )
            )
        if one.label:
            height = TOP + 12 + 15 * len(legend)
            begin = right - 150 if panel.level is None else left + LEFT + 8
            legend.append(
                path([(begin, height - 4), (begin + 20, height - 4)], f' stroke="{colour}" stroke-width="3"')
                + text(begin + 25, height, one.label)
            )
    return out + legend


def svg(panels, about):
    """The panels side by side; `about`: a line below them."""
    width, height = WIDTH * len(panels), HEIGHT + 20
    parts = [part for number, panel in enumerate(panels) for part in panel_svg(panel, number * WIDTH)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} '
            f'{height}" font-family="sans-serif" font-size="11">',
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            *parts,
            text(8, height - 6, about, ' font-size="10" fill="#555"'),
            "</svg>",
            "",
        ]
    )
