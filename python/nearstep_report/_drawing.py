"""Charts as inline SVG, drawn by Matplotlib. Their text is text, so the page stays small, sharp and searchable.
Used by _page.py, _runs.py and _studies.py."""

import io
import itertools
import re
import warnings
import xml.etree.ElementTree as tree
from dataclasses import dataclass, field, replace

import matplotlib
from matplotlib import ticker
from matplotlib.figure import Figure

from ._values import formatted, number, objects, origin_of, words

COLOURS = ("#1f6fb2", "#d1602b", "#2b8a5b", "#8b4fb0", "#b23a48", "#5f6773", "#a3801a", "#14808c")
# Each origin has its own line and its own mark.
LINES = {
    "measured": "-",
    "shaped": (0, (9, 1.5)),
    "modelled": (0, (4, 2.5)),
    "simulated": (0, (1, 1.8)),
    "published": (0, (7, 2, 1.5, 2)),
}
MARKS = {"measured": "o", "shaped": "s", "modelled": "o", "simulated": "^", "published": "D"}
FILLED = ("measured", "shaped")
PHASES = {
    "forward": "#9aa7b4",
    "backward and gradients": "#4d8ab5",
    "update": "#df8a4d",
    "hidden behind other phases": "#f6e3d3",
}

WIDTH, HEIGHT = 360, 216  # of a chart's view box; on a phone one unit is about one pixel
MOST_POINTS = 400
MOST_MARKS = 40

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "nearstep",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": "#333c46",
    "axes.labelcolor": "#333c46",
    "xtick.color": "#333c46",
    "ytick.color": "#333c46",
    "axes.edgecolor": "#b8c0c8",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e9ed",
    "grid.linewidth": 0.8,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "hatch.linewidth": 1.0,
    "hatch.color": "white",
}


@dataclass
class Line:
    name: str
    origin: str
    points: list  # (x, y), ascending x
    colour: str = ""  # empty: by the name
    mark: str = ""  # empty: by the origin
    joins: bool = True
    tip: str = ""  # under the pointer; empty: the name


@dataclass
class Bar:
    label: str
    origin: str
    parts: dict  # name: amount
    note: str = ""  # at the bar's end


@dataclass
class Chart:
    title: str
    unit: str
    svg: str
    keys: list = field(default_factory=list)  # (name, colour) of its legend
    note: str = ""


def short_number(value):
    """A tick's label: "0.25", "4096", "131k"."""
    for unit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if 1e4 <= abs(value) < 1e15 and abs(value) >= unit:
            return f"{value / unit:.3g}{suffix}"
    return f"{value:.4g}"


def thinned(points):
    """Returns at most MOST_POINTS points, each the mean of as many neighbours, and their number."""
    size = -(-len(points) // MOST_POINTS)
    if size <= 1:
        return points, 1
    parts = [points[at : at + size] for at in range(0, len(points), size)]
    return [(part[-1][0], sum(y for _, y in part) / len(part)) for part in parts], size


def _new_figure(height):
    figure = Figure(figsize=(WIDTH / 72, height / 72))
    return figure, figure.add_subplot()


def _to_svg(figure, titles, prefix):
    """The figure as an element; `titles`: texts for the marks of each group, shown under the pointer."""
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter that Matplotlib's font lacks: the browser has others
        figure.savefig(
            out, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    for name in ("", "xlink"):
        tree.register_namespace(name, "http://www.w3.org/2000/svg" if not name else "http://www.w3.org/1999/xlink")
    root = tree.fromstring(out.getvalue())
    for one in root.iter():
        texts = titles.get(one.get("id"))
        if texts:
            marks = one.iter("{http://www.w3.org/2000/svg}use") if isinstance(texts, list) else [one]
            for mark, text in zip(list(marks), itertools.cycle([texts]) if isinstance(texts, str) else texts):
                tree.SubElement(mark, "{http://www.w3.org/2000/svg}title").text = text
    for one in root.iter():
        for key, value in one.attrib.items():
            if key == "id":
                one.set(key, prefix + value)
            elif "#" in value:
                one.set(
                    key,
                    re.sub(r"^#(?=[a-zA-Z])(?![0-9a-f]{6}$)|(?<=url\(#)", lambda found: found.group() + prefix, value),
                )
    root.attrib.pop("width", None)
    root.attrib.pop("height", None)
    return tree.tostring(root, encoding="unicode")


class Drawer:
    """Draws the charts of one page, whose elements have different ids."""

    def __init__(self):
        self._count = itertools.count()

    def lines(self, title, x_name, y_name, lines, is_log=False, note="", from_zero=True):
        """Lines with the same name get the same colour. None if there are no points."""
        lines = [replace(one, points=self._drawn(one.points, is_log)) for one in lines]
        lines = [one for one in lines if one.points]
        if not lines:
            return None
        colours, titles = {}, {}
        marks_all = all(len(one.points) <= MOST_MARKS for one in lines)
        with matplotlib.rc_context(STYLE):
            figure, axes = _new_figure(HEIGHT)
            for place, line in enumerate(lines):
                colour = line.colour or colours.get(line.name) or COLOURS[len(colours) % len(COLOURS)]
                colours.setdefault(line.name, colour)
                points, size = thinned(line.points)
                has_marks = marks_all or not line.joins or (line.mark and len(points) <= MOST_MARKS)
                (drawn,) = axes.plot(
                    *zip(*points),
                    linestyle=LINES[line.origin] if line.joins else "none",
                    color=colour,
                    marker=(line.mark or MARKS[line.origin]) if has_marks else None,
                    markerfacecolor=colour if line.origin in FILLED else "white",
                    gid=f"line{place}",
                    zorder=3 if has_marks else 2,
                )
                drawn.set_linewidth(1.8 if has_marks else 1.2)
                if has_marks:
                    titles[f"line{place}"] = [
                        f"{line.tip or line.name}, {line.origin}: {x_name} {formatted(x, '.4g')}, {formatted(y, '.4g')}"
                        for x, y in points
                    ]
                if size > 1 and not note:
                    note = f"Each point is the mean of {size} steps."
            counts = all(x == int(x) for line in lines for x, _ in line.points)  # steps, devices
            self._set_axes(axes, x_name, is_log, from_zero, counts)
            low, high = axes.get_ylim()
            letters = max((len(short_number(value)) for value in axes.get_yticks() if low <= value <= high), default=1)
            figure.subplots_adjust(left=(6.6 * letters + 8) / WIDTH, right=0.97, top=0.955, bottom=0.165)
            svg = _to_svg(figure, titles, f"c{next(self._count)}-")
        return Chart(title, y_name, svg, list(colours.items()), note)

    def bars(self, title, x_name, bars, colours, note=""):
        """Horizontal bars of stacked parts. None if all are empty."""
        bars = [
            Bar(
                one.label,
                one.origin,
                {name: value for name, value in one.parts.items() if (number(value) or 0) > 0},
                one.note,
            )
            for one in bars
        ]
        bars = [one for one in bars if one.parts]
        if not bars:
            return None
        titles, groups, used = {}, list(dict.fromkeys(one.label for one in bars)), set()
        height = 26 + 15 * len(groups) + 16 * len(bars)
        with matplotlib.rc_context(STYLE):
            figure, axes = _new_figure(height)
            place = 0
            for label in groups:
                axes.annotate(label, (0, place), xytext=(1, 0), textcoords="offset points", va="center")
                for bar in (one for one in bars if one.label == label):
                    place += 1
                    self._draw_bar(axes, place, bar, colours, titles)
                    used |= bar.parts.keys()
                place += 0.95
            axes.set_ylim(place - 0.35, -0.6)
            # Room for the note behind each bar, whose letters are at most 6.2 wide.
            axes.set_xlim(
                0,
                max(sum(one.parts.values()) / (1 - min(0.6, (6.2 * len(self._note(one)) + 6) / WIDTH)) for one in bars)
                or 1,
            )
            axes.set_yticks([])
            axes.grid(axis="y", visible=False)
            axes.spines["left"].set_visible(False)
            axes.xaxis.set_major_locator(ticker.MaxNLocator(5))
            axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: short_number(value)))
            figure.subplots_adjust(left=0.015, right=0.98, top=0.99, bottom=20 / height)
            svg = _to_svg(figure, titles, f"c{next(self._count)}-")
        return Chart(title, x_name, svg, [(name, colour) for name, colour in colours.items() if name in used], note)

    @staticmethod
    def _note(bar):
        return bar.note or formatted(sum(bar.parts.values()), ".3g")

    @staticmethod
    def _draw_bar(axes, place, bar, colours, titles):
        start = 0
        for name, value in bar.parts.items():
            colour, gid = colours.get(name, COLOURS[0]), f"bar{len(titles)}"
            look = (
                {"color": colour}
                if bar.origin in FILLED
                else {
                    "facecolor": "white",
                    "edgecolor": colour,
                    "linestyle": "--" if bar.origin == "modelled" else ":",
                    "linewidth": 1.3,
                }
            )
            if bar.origin == "shaped":
                look["hatch"] = "////"
            axes.barh(place, value, 0.62, start, **look).patches[0].set_gid(gid)
            titles[gid] = f"{bar.label}, {bar.origin}: {name} {formatted(value, '.4g')}"
            start += value
        axes.annotate(
            Drawer._note(bar), (start, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9.5
        )

    @staticmethod
    def _drawn(points, is_log):
        return sorted(
            (x, y)
            for x, y in points
            if number(x) is not None and number(y) is not None and (not is_log or (x > 1e-30 and y > 1e-30))
        )

    @staticmethod
    def _set_axes(axes, x_name, is_log, from_zero, counts):
        axes.set_xlabel(x_name)
        for axis, set_scale in ((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale)):
            if is_log:
                set_scale("log", base=2)
                axis.set_minor_locator(ticker.NullLocator())
                low, high = axis.get_view_interval()
                axis.set_major_locator(
                    ticker.LogLocator(base=2, subs=(1, 1.5) if high < 10 * low else (1,), numticks=8)
                )
            else:
                is_whole = counts and axis is axes.xaxis
                axis.set_major_locator(ticker.MaxNLocator(6, integer=is_whole, min_n_ticks=1 if is_whole else 2))
            axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: short_number(value)))
        if not is_log and from_zero and axes.get_ylim()[0] > 0:
            axes.set_ylim(bottom=0)
        axes.margins(x=0.03)

    def plot(self, spec, rows):
        """A plot of an experiment: {title, x, y: keys, series: key, x_name, y_name, log}. None if all rows have the
        same x, since a table shows one point better."""
        x, series = words(spec.get("x")), words(spec.get("series"))
        keys = [words(key) for key in spec["y"]] if isinstance(spec.get("y"), list) else []
        rows = objects(rows)
        if len({number(row.get(x)) for row in rows}) < 2:
            return None
        lines = []
        for name in dict.fromkeys(words(row.get(series)) for row in rows):
            mine = [row for row in rows if words(row.get(series)) == name]
            for key in keys:
                by_origin = {}
                for row in mine:
                    by_origin.setdefault(origin_of(key, row), []).append((row.get(x), row.get(key)))
                lines += [Line(name, origin, points) for origin, points in by_origin.items() if name]
        return self.lines(
            words(spec.get("title")),
            words(spec.get("x_name")),
            words(spec.get("y_name")),
            lines,
            spec.get("log") is True,
        )
