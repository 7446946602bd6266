"""A function as an agent: `dragoman serve examples/adapters/function.py:shout`."""


def shout(text: str) -> str:
    """Says it louder."""
    return text.upper() + "!"
