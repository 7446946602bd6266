"""How code leaves its turn other than by returning; none of these is a failure."""

from dragoman.model.message import Part


class Ended(Exception):
    """The task ended elsewhere: by a cancel, a limit, or another worker."""


class TaskCompleted(Exception):
    """The code is done, with a last message."""

    def __init__(self, parts: list[Part]) -> None:
        super().__init__()
        self.parts = parts


class TaskEnded(Exception):
    """The code has recorded the end of its task itself."""


class TaskWaits(Exception):
    """The code has put a question and is done with this message: the next one is the answer."""
