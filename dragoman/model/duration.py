"""Durations in a readable form. Without slow imports: every command loads this module."""

from dragoman.model.patterns import late_pattern

_DURATION = late_pattern(
    r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?"
)


def duration(value: str) -> float:
    """Read seconds: `500ms`, `2s`, `1m30s`, `1h` or a plain number."""
    try:
        seconds = float(value)
    except ValueError:
        match = _DURATION.fullmatch(value)
        if not value or match is None:
            raise ValueError("must be a duration such as 500ms, 2s or 1m30s") from None
        hours, minutes, whole, thousandths = (float(group or 0) for group in match.groups())
        seconds = hours * 3600 + minutes * 60 + whole + thousandths / 1000
    if not 0 <= seconds < float("inf"):
        raise ValueError("must be a duration such as 500ms, 2s or 1m30s")
    return seconds
