"""Small plots as SVG text, to stand in a page by themselves: no plotting library, no script, no font to fetch."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 560, 320, 64, 40, 16
BAR, NAMES = 18, 170
COLOURS = ("#1f6feb", "#d1570a", "#2da44e")


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


def lines(shown: Sequence[Line], *, across: str, up: str) -> str:
    """Both axes from 0. Empty lines are left out."""
    points = [point for line in shown for point in line.points]
    most_x = max((x for x, _ in points), default=1.0) or 1.0
    most_y = max((y for _, y in points), default=1.0) or 1.0

    def place(point: tuple[float, float]) -> str:
        x = LEFT + point[0] / most_x * (WIDTH - LEFT - 16)
        y = HEIGHT - BOTTOM - point[1] / most_y * (HEIGHT - BOTTOM - TOP)
        return f"{x:.1f},{y:.1f}"

    drawn = _axes(across, up, most=(most_x, most_y))
    for at, line in enumerate(shown):
        colour, dash = COLOURS[at % len(COLOURS)], ' stroke-dasharray="5 4"' if line.dashed else ""
        path = " ".join(place(point) for point in line.points)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        drawn.append(_text(LEFT + 10, TOP + 14 * (at + 1), text=line.name, colour=colour))
    return _svg(drawn, HEIGHT)


def bars(shown: Sequence[tuple[str, float]]) -> str:
    """Horizontal, from 0, in the order given."""
    most = max((value for _, value in shown), default=0.0) or 1.0
    return ranges([Range(name, 0.0, value, value) for name, value in shown], span=(0.0, most), unit="")


def ranges(shown: Sequence[Range], *, span: tuple[float, float], unit: str) -> str:
    """Horizontal; `span` are the values at the left and the right edge, beyond which bars are cut."""
    low, high = span

    def place(value: float) -> float:
        return NAMES + (min(max(value, low), high) - low) / (high - low) * (WIDTH - NAMES - 70)

    drawn = []
    for at, each in enumerate(shown):
        y = TOP + at * (BAR + 4)
        left, right = place(each.low), place(each.high)
        drawn.append(_text(NAMES - 6, y + 13, text=each.name, anchor="end"))
        drawn.append(
            f'<rect x="{left:.1f}" y="{y}" width="{max(right - left, 1):.1f}" height="{BAR}" fill="#9ec5fe"/>'
        )
        drawn.append(
            f'<rect x="{place(each.middle) - 1:.1f}" y="{y}" width="3" height="{BAR}" fill="{COLOURS[0]}"/>'
        )
        drawn.append(_text(WIDTH - 64, y + 13, text=f"{each.middle:.3g}{unit}"))
    return _svg(drawn, TOP + len(shown) * (BAR + 4) + 8)


def _axes(across: str, up: str, *, most: tuple[float, float]) -> list[str]:
    floor = HEIGHT - BOTTOM
    return [
        f'<path d="M{LEFT} {TOP} V{floor} H{WIDTH - 16}" fill="none" stroke="#888"/>',
        _text(LEFT, floor + 16, text="0", anchor="middle"),
        _text(WIDTH - 16, floor + 16, text=f"{most[0]:.4g}", anchor="end"),
        _text(LEFT - 6, TOP + 10, text=f"{most[1]:.4g}", anchor="end"),
        _text((WIDTH + LEFT) // 2, HEIGHT - 6, text=across, anchor="middle"),
        f'<g transform="rotate(-90)">{_text(-HEIGHT // 2, 14, text=up, anchor="middle")}</g>',
    ]


def _text(x: float, y: float, *, text: str, anchor: str = "start", colour: str = "#333") -> str:
    style = f'text-anchor="{anchor}" fill="{colour}" font-size="12" font-family="sans-serif"'
    return f'<text x="{x:.0f}" y="{y:.0f}" {style}>{escape(text)}</text>'


def _svg(drawn: Sequence[str], height: int) -> str:
    box = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{"".join(drawn)}</svg>'
