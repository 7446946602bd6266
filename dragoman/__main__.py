"""The command `dragoman`, also as `python -m dragoman`."""

import gc


def run() -> None:
    """Run the command that was typed."""
    # What is loaded stays: looking through it for garbage is a tenth of the time to start. Only
    # here: what imports our modules has a collector of its own to decide about.
    gc.set_threshold(100_000, 20, 50)
    from dragoman.cli.main import main

    main()


if __name__ == "__main__":
    run()
