"""Bar charts as SVG: the median of each contender, and a line from minimum to maximum."""

from collections.abc import Sequence
from html import escape
from statistics import median

from benchmarks.rows import Row

WIDTH, LABEL, VALUE = 860, 230, 110
BAR, GAP, HEAD = 18, 6, 34
OURS, THEIRS, INK = "#2f6fdb", "#9aa5b1", "#57606a"
STYLE = f'font-family="sans-serif" font-size="13" fill="{INK}"'


def chart(rows: Sequence[Row]) -> str:
    """Return one block of bars per row, each with its own scale."""
    parts, top = [], 0
    for row in rows:
        parts.append(f'<text x="0" y="{top + 22}" font-weight="bold">{escape(row.name)}, {escape(row.unit)}</text>')
        top += HEAD
        scale = (WIDTH - LABEL - VALUE) / (max(max(values) for values in row.samples.values()) or 1)
        for contender, values in row.samples.items():
            parts.append(_bar(contender, values, top, scale, OURS if contender == row.ours else THEIRS))
            top += BAR + GAP
        top += GAP
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" {STYLE}>\n{body}\n</svg>\n'


def _bar(contender: str, values: Sequence[float], top: int, scale: float, colour: str) -> str:
    middle, low, high = (max(0.0, value) * scale for value in (median(values), min(values), max(values)))
    line, text = top + BAR / 2, top + BAR - 5
    return (
        f'<text x="{LABEL - 8}" y="{text}" text-anchor="end">{escape(contender)}</text>'
        f'<rect x="{LABEL}" y="{top}" width="{middle:.1f}" height="{BAR}" fill="{colour}"/>'
        f'<path d="M{LABEL + low:.1f} {line}H{LABEL + high:.1f}" stroke="{INK}" stroke-width="2"/>'
        f'<text x="{LABEL + max(high, middle) + 8:.1f}" y="{text}">{number(median(values))}</text>'
    )


def number(value: float) -> str:
    """Format with three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
