"""A clock that is set by hand, for what judges by seconds."""


class Time:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at
