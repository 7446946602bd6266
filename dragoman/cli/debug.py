"""`--debug`: what went over the wire, on stderr and without secrets."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.cli.output import Output
    from dragoman.cli.redaction import Redactor
    from dragoman.client.pending_request import Exchanged

_LONGEST = 64 * 1024


class WireTrace:
    """Shows each exchange of a client."""

    def __init__(self, out: "Output", redactor: "Redactor") -> None:
        self._out = out
        self._redactor = redactor

    def __call__(self, seen: "Exchanged") -> None:
        """Show one."""
        is_ours = seen.kind in ("request", "card")
        arrow = ">" if is_ours else "<"
        head = f"{arrow} {seen.kind} {seen.method} {self._redactor.text(seen.url)}"
        if seen.status:
            head += f" {seen.status}"
        if not is_ours:
            head += f" ({seen.elapsed * 1000:.0f} ms)"
        self._out.debug(head)
        for name, value in self._redactor.headers(seen.headers).items():
            self._out.debug(f"{arrow} {name}: {value}")
        if seen.body:
            self._out.debug(f"{arrow} {self._redactor.body(seen.body)[:_LONGEST]}")
        if seen.text:
            self._out.debug(f"{arrow} {seen.text}")
