"""Axes of pictures: the coordinates of values, and the labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: The largest number of labels that fit on a logarithmic axis.
_DECADES_MAX = 8


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high`, or those of which these are the logarithms, between two pixels."""

    low: float
    high: float
    first: float
    last: float
    #: Values that are labelled, with their labels.
    ticks: Sequence[tuple[float, str]]
    is_logarithmic: bool = False

    @staticmethod
    def linear(lowest: float, highest: float, first: float, last: float, *, count: int = 5) -> Axis:
        """Returns an axis with about `count` labels, at round numbers."""
        if (highest - lowest) / count <= abs(highest) * 1e-12:
            room = abs(highest) * 0.01 or 1.0
            lowest, highest = lowest - room, highest + room
        rough = (highest - lowest) / count
        power = math.floor(math.log10(rough))
        factor = next((factor for factor in (1, 2, 2.5, 5) if factor * 10.0**power >= rough), 10)
        step = factor * 10.0**power
        # A number such as 0.3 is not exactly a multiple of 0.1.
        numbers = range(math.ceil(lowest / step - 1e-6), math.floor(highest / step + 1e-6) + 1)
        decimals = max(-power + (factor == 2.5), 0)
        ticks = [(number * step, _label(number * step, decimals)) for number in numbers]
        return Axis(lowest, highest, first, last, ticks)

    @staticmethod
    def logarithmic(
        lowest: float, highest: float, first: float, last: float, label: Callable[[float], str]
    ) -> Axis:
        """From a power of ten to another; both values are above 0."""
        low = math.floor(math.log10(lowest))
        high = max(math.ceil(math.log10(highest)), low + 1)
        powers = range(low, high + 1, -(-(high - low) // _DECADES_MAX))
        ticks = [(10.0**power, label(10.0**power)) for power in powers]
        return Axis(low, high, first, last, ticks, is_logarithmic=True)

    def at(self, value: float) -> float:
        """The pixel of a value."""
        place = math.log10(value) if self.is_logarithmic else value
        return self.first + (place - self.low) / (self.high - self.low) * (self.last - self.first)

    def horizontal_lines(self, left: float, right: float) -> str:
        """Returns a line for each label, with the label to its left."""
        return "".join(
            f'<line class="grid" x1="{left}" x2="{right}" y1="{self.at(value):.1f}" y2="{self.at(value):.1f}"/>'
            f'<text text-anchor="end" x="{left - 6}" y="{self.at(value) + 4:.1f}">{label}</text>'
            for value, label in self.ticks
        )

    def vertical_lines(self, top: float, bottom: float) -> str:
        """Returns a line for each label, with the label below it."""
        return "".join(
            f'<line class="grid" x1="{self.at(value):.1f}" x2="{self.at(value):.1f}" y1="{top}" y2="{bottom}"/>'
            f'<text text-anchor="middle" x="{self.at(value):.1f}" y="{bottom + 14}">{label}</text>'
            for value, label in self.ticks
        )


def _label(value: float, decimals: int) -> str:
    return f"{value:,.{decimals}f}" if decimals <= 9 and abs(value) < 1e12 else f"{value:.6g}"
