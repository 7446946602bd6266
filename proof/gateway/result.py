"""What the proof of a gateway found, and the promises that it is about."""

import msgspec

from proof.results import Result, Row, Spread, bound


class Takeovers(msgspec.Struct):
    """Milliseconds from the kill of an agent's process until another goes on with its task."""

    quiet: Spread = msgspec.field(default_factory=Spread)
    # Those that were timed while other programs used the machine.
    crowded: Spread = msgspec.field(default_factory=Spread)


class GatewayResult(Result, kw_only=True):
    """What became of what callers were told."""

    proof: str = "gateway"
    kills: int
    gateway_kills: int
    agent_kills: int
    flaps: int
    # Errands that were acknowledged, and of these the ones that were followed as a stream.
    tasks: int
    streams: int
    # Not there, not ended, or not seen through by their callers.
    lost: int
    # Ended otherwise, or with other words, than undisturbed.
    differing: int
    changed: int
    doubled: int
    # Steps that agents recorded, and those that were taken again.
    steps: int
    repeated: int
    # Streams or logs that are not contiguous.
    gaps: int
    captures: int
    double_charges: int
    uncharged: int
    sum: int
    holds: int
    # Messages an agent's code ran on, and how often it did.
    worked_once: tuple[int, int]
    worked_many: tuple[int, int]
    # How often a task was given to another address, and requests and streams that were cut off.
    moves: int
    unknown: int
    resumed: int
    # Connections of joined agents that were cut off on the way.
    cuts: int = 0
    takeovers: Takeovers
    refused: dict[str, int]
    bound_per_kill: float | None = None

    def rows(self) -> list[Row]:
        """Return the promises."""
        of = f"of {self.tasks:,} tasks, {self.kills:,} kills"
        money = f"{self.double_charges} and {self.uncharged} of {self.captures:,} charges"
        books = f"off by {self.sum}, {self.holds} holds left"
        broken = f"{self.gaps} of {self.streams:,} streams, resumed {self.resumed:,} times"
        messages, runs = self.worked_once
        tries = f"{self.doubled} of {messages:,}, and its code ran {runs:,} times"
        return [
            Row("Tasks lost by a gateway", f"{self.lost} {of}", not self.lost, self.bound),
            Row(
                "Tasks that end differently than without kills",
                f"{self.differing} {of}",
                not self.differing + self.changed,
                self.bound,
            ),
            Row("Streams through a gateway with gaps", broken, not self.gaps, bound(self.streams)),
            Row(
                "Tasks charged twice or for nothing, and not charged",
                money,
                not self.double_charges + self.uncharged,
                bound(self.captures),
            ),
            Row("Books after the run", books, not self.sum + self.holds),
            Row("Messages that an agent which works once got twice", tries, not self.doubled),
            Row(
                "Steps taken again that were recorded",
                f"{self.repeated} of {self.steps:,}",
                not self.repeated,
                bound(self.steps),
            ),
        ]
