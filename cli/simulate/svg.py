"""Plots as SVG, which a page holds inline: axes with round numbers, lines, areas, points. No script, no font, no link.

Colours are classes of the page's style, so that they follow a dark or a light screen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 760, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 16, 14, 40
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Scale:
    """One axis, from `low` to `high`, in a span of pixels. log: by powers of ten; both ends are above 0 then."""

    low: float
    high: float
    first: float
    last: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the pixel of a value; what lies outside stands at the end."""
        low, high, value = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        share = (value - low) / (high - low) if high > low else 0.0
        return round(self.first + share * (self.last - self.first), 1)


@dataclass(frozen=True, slots=True)
class Tick:
    """A value on an axis, and what is written there."""

    value: float
    text: str


class Plot:
    """One picture with its axes. name: what it shows, for who cannot see it."""

    def __init__(self, name: str, x: tuple[float, float], y: tuple[float, float], *, log_x: bool = False) -> None:
        self._name = name
        self.x = Scale(*x, _LEFT, WIDTH - _RIGHT, log_x)
        self.y = Scale(*y, HEIGHT - _BOTTOM, _TOP)
        self._below: list[str] = []
        self._above: list[str] = []

    def axes(self, x: Sequence[Tick], y: Sequence[Tick], x_name: str, y_name: str) -> None:
        """Draw a grid at the ticks, and name both axes."""
        bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
        for tick in y:
            at = self.y.at(tick.value)
            self._below.append(f'<path class="grid" d="M{_LEFT} {at}H{right}"/>')
            self._below.append(
                f'<text class="tick" x="{_LEFT - 6}" y="{at + 4}" text-anchor="end">{_text(tick)}</text>'
            )
        for tick in x:
            at = self.x.at(tick.value)
            self._below.append(f'<path class="grid" d="M{at} {_TOP}V{bottom}"/>')
            self._below.append(
                f'<text class="tick" x="{at}" y="{bottom + 16}" text-anchor="middle">{_text(tick)}</text>'
            )
        middle = (_LEFT + right) / 2
        self._below.append(
            f'<text class="axis" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_name)}</text>'
        )
        turned = f"rotate(-90 13 {(_TOP + bottom) / 2})"
        self._below.append(
            f'<text class="axis" x="13" y="{(_TOP + bottom) / 2}" text-anchor="middle" transform="{turned}">'
            f"{escape(y_name)}</text>"
        )

    def line(self, points: Points, style: str) -> None:
        """Draw a line through points, in their order."""
        if points:
            self._above.append(f'<path class="line {style}" d="M{self._path(points)}"/>')

    def steps(self, points: Points, style: str) -> None:
        """Draw a line that keeps its height until the next point."""
        stairs = [points[0]] if points else []
        for (_, before), (x, y) in pairwise(points):
            stairs += [(x, before), (x, y)]
        self.line(stairs, style)

    def area(self, points: Points, style: str, base: float = 0.0) -> None:
        """Fill what is between points and a base."""
        if points:
            whole = [(points[0][0], base), *points, (points[-1][0], base)]
            self._above.append(f'<path class="area {style}" d="M{self._path(whole)}Z"/>')

    def bar(self, x0: float, x1: float, y: float, style: str, told: str = "") -> None:
        """Fill from 0 to y between two values of x. told: shown to who points there."""
        left, right = self.x.at(x0), self.x.at(x1)
        top, bottom = sorted((self.y.at(y), self.y.at(0.0)))
        title = f"<title>{escape(told)}</title>" if told else ""
        size = f'x="{left}" y="{top}" width="{max(0.4, right - left):.1f}" height="{max(0.4, bottom - top):.1f}"'
        self._above.append(f'<rect class="bar {style}" {size}>{title}</rect>')

    def rule(self, y: float) -> None:
        """Draw a line across at a value of y."""
        at = self.y.at(y)
        self._above.append(f'<path class="rule" d="M{_LEFT} {at}H{WIDTH - _RIGHT}"/>')

    def drawn(self) -> str:
        """Return the picture."""
        parts = "".join([*self._below, *self._above])
        name = escape(self._name, quote=True)
        return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">{parts}</svg>'

    def _path(self, points: Points) -> str:
        return "L".join(f"{self.x.at(x)} {self.y.at(y)}" for x, y in points)


def _text(tick: Tick) -> str:
    return escape(tick.text)


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round values from low to high: 1, 2 or 5 times a power of ten apart, at most `most` + 1 of them."""
    if high <= low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough * 0.999999)
    first = math.ceil(low / step - 1e-9)
    return [round(at * step, 10) for at in range(first, math.floor(high / step + 1e-9) + 1)]
