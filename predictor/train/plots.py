"""Small plots as SVG text, to stand in a page by themselves: no plotting library, no script, no font to fetch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM = 640, 340, 72, 24, 46
LEGEND = 18  # height of one of its lines
BAR, NAMES, VALUES = 18, 180, 76
TICKS = 6  # at most
COLOURS = ("#1f6feb", "#d1570a", "#2da44e")
GREY, FAINT = "#666", "#e4e7eb"


@dataclass(frozen=True, slots=True)
class Line:
    """`name` goes into the legend."""

    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    """A bar from `low` to `high` with a mark at `middle`."""

    name: str
    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from `low` to `high` on pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """What is beyond an edge is put there."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        step = _round_step((self.high - self.low) / TICKS)
        first = math.ceil(self.low / step - 1e-9)
        return [step * n for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def lines(shown: Sequence[Line], *, across: str, up: str, least_up: float = 0.0) -> str:
    """The axis across from 0, the one upwards from `least_up` on. Empty lines are left out."""
    points = [point for line in shown for point in line.points]
    most_x = max((x for x, _ in points), default=0.0) or 1.0
    most_y = max(max((y for _, y in points), default=0.0), least_up) or 1.0
    top = LEGEND * len(shown) + 16
    floor = top + HEIGHT - BOTTOM
    x = Axis(0.0, most_x, LEFT, WIDTH - RIGHT)
    y = Axis(least_up, most_y if most_y > least_up else least_up + 1.0, floor, top)
    drawn = _grid(x, y, across=across, up=up)
    for at, line in enumerate(shown):
        colour, dash = COLOURS[at % len(COLOURS)], ' stroke-dasharray="6 4"' if line.dashed else ""
        stroke = f'fill="none" stroke="{colour}" stroke-width="2"{dash}'
        path = " ".join(f"{x.place(right):.1f},{y.place(high):.1f}" for right, high in line.points)
        drawn.append(f'<polyline points="{path}" {stroke}/>')
        if not line.dashed:
            drawn += [_dot(x.place(right), y.place(high), colour=colour) for right, high in line.points]
        height = LEGEND * at + 12
        drawn.append(f'<path d="M{LEFT} {height} h24" {stroke}/>')
        drawn.append(_text(LEFT + 32, height + 4, text=line.name))
    return _svg(drawn, floor + BOTTOM)


def bars(shown: Sequence[tuple[str, float]], *, unit: str = "") -> str:
    """Horizontal, from 0, in the order given."""
    most = max((value for _, value in shown), default=0.0) or 1.0
    return ranges([Range(name, 0.0, value, value) for name, value in shown], span=(0.0, most), unit=unit)


def ranges(
    shown: Sequence[Range], *, span: tuple[float, float], unit: str, right: float | None = None
) -> str:
    """Horizontal; `span` are the values at the left and the right edge, where bars are cut. `right`: has a line of its own."""
    axis, floor = Axis(*span, NAMES, WIDTH - VALUES), len(shown) * (BAR + 4) + 6
    drawn = [_rule(axis.place(tick), (0, floor), colour=FAINT) for tick in axis.ticks()]
    drawn += [
        _text(axis.place(tick), floor + 15, text=f"{tick:,.9g}{unit}", anchor="middle", colour=GREY)
        for tick in axis.ticks()
    ]
    for at, each in enumerate(shown):
        top, left = at * (BAR + 4) + 4, axis.place(each.low)
        width = max(axis.place(each.high) - left, 1.0)
        drawn.append(_text(NAMES - 8, top + 13, text=each.name, anchor="end"))
        drawn.append(_box(left, top, width=width, colour="#9ec5fe"))
        drawn.append(_box(axis.place(each.middle) - 1.5, top, width=3, colour=COLOURS[0]))
        drawn.append(_text(WIDTH - VALUES + 10, top + 13, text=f"{each.middle:.3g}{unit}"))
    if right is not None:
        drawn.append(_rule(axis.place(right), (0, floor), colour=COLOURS[1]))
    return _svg(drawn, floor + 22)


def _grid(x: Axis, y: Axis, *, across: str, up: str) -> list[str]:
    floor, middle = y.start, (y.start + y.end) / 2
    drawn = []
    for tick in y.ticks():
        height = y.place(tick)
        drawn.append(f'<path d="M{x.start:.0f} {height:.1f} H{x.end:.0f}" stroke="{FAINT}"/>')
        drawn.append(_text(x.start - 8, height + 4, text=f"{tick:,.9g}", anchor="end", colour=GREY))
    for tick in x.ticks():
        drawn.append(_rule(x.place(tick), (y.end, floor), colour=FAINT))
        drawn.append(_text(x.place(tick), floor + 16, text=f"{tick:,.9g}", anchor="middle", colour=GREY))
    return [
        *drawn,
        f'<path d="M{x.start:.0f} {floor:.1f} H{x.end:.0f}" stroke="{GREY}"/>',
        _text((x.start + x.end) / 2, floor + 36, text=across, anchor="middle"),
        f'<g transform="rotate(-90)">{_text(-middle, 16, text=up, anchor="middle")}</g>',
    ]


def _round_step(rough: float) -> float:
    """The least of 1, 2, 2.5, 5, 10 times a power of ten that is not below."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1.0, 2.0, 2.5, 5.0, 10.0) if step * power >= rough * (1 - 1e-9))


def _rule(x: float, span: tuple[float, float], *, colour: str) -> str:
    return f'<path d="M{x:.1f} {span[0]:.1f} V{span[1]:.1f}" stroke="{colour}"/>'


def _dot(x: float, y: float, *, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'


def _box(x: float, y: float, *, width: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.0f}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>'


def _text(x: float, y: float, *, text: str, anchor: str = "start", colour: str = "#222") -> str:
    style = f'text-anchor="{anchor}" fill="{colour}" font-size="12" font-family="sans-serif"'
    return f'<text x="{x:.0f}" y="{y:.0f}" {style}>{escape(text)}</text>'


def _svg(drawn: Sequence[str], height: float) -> str:
    box = f'viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{"".join(drawn)}</svg>'
