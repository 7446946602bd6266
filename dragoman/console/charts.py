"""Small charts: numbers as the path of a line, drawn by the browser as SVG."""

from collections.abc import Sequence

import msgspec

WIDTH, HEIGHT = 300.0, 60.0


class Chart(msgspec.Struct):
    """A line over time, and the area below it."""

    name: str
    # The present value as people read it, and what it is of.
    amount: str
    unit: str
    curve: str
    area: str
    # A second line in another colour, such as failures among all.
    second: str
    # In words, for those who do not see it.
    summary: str
    # The largest value there was, as people read it.
    peak: str = ""


def chart(
    name: str,
    amount: str,
    unit: str,
    values: Sequence[float],
    others: Sequence[float] = (),
    *,
    slots: int = 0,
) -> Chart:
    """Return the chart of some values, oldest first; `others` share its scale. With `slots` there
    is room for so many, and fewer are at its end."""
    # Some room above: a value that stays the same is a line, and not a box.
    top = (max([*values, *others, 0.0]) or 1.0) * 1.2
    slots = max(slots, len(values))
    curve = _curve(values, top, slots)
    begin = WIDTH - WIDTH * max(1, len(values) - 1) / max(1, slots - 1)
    area = f"{curve}L{WIDTH:g} {HEIGHT:g}L{begin:.1f} {HEIGHT:g}Z" if curve else ""
    most = max(values, default=0.0)
    summary = f"{name}: {amount} {unit}, at most {most:g} in the last 15 minutes"
    second = _curve(others, top, slots) if any(others) else ""
    peak = f"{most:,.0f}" if most >= 10 else f"{most:.2g}"
    return Chart(name, amount, unit, curve, area, second, summary, peak)


def _curve(values: Sequence[float], top: float, slots: int) -> str:
    if not values:
        return ""
    step = WIDTH / max(1, slots - 1)
    before = slots - len(values)
    points = [
        f"{(before + at) * step:.1f} {HEIGHT - 2 - (HEIGHT - 4) * value / top:.1f}"
        for at, value in enumerate(values)
    ]
    if len(points) == 1:
        # One value is seen as a short line.
        height = points[0].split()[1]
        points = [f"{WIDTH - step:.1f} {height}", f"{WIDTH:g} {height}"]
    return "M" + "L".join(points)
