"""One run of the command: what was typed, what holds for it, and what the caller must be told if
it ends early."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from dragoman.cli.output import Output
from dragoman.cli.redaction import Redactor
from dragoman.cli.sources import CommandSettings

if TYPE_CHECKING:
    # Heavy: loaded when an agent is called.
    from dragoman.model.task import TaskStatus


class Invocation:
    """The run; commands get it as their first argument."""

    def __init__(
        self, argv: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        self.argv = list(argv)
        self.environment = os.environ if environment is None else environment
        try:
            self.folder = Path.cwd()
        except OSError:
            # It was removed while we were in it.
            self.folder = Path()
        self.redactor = Redactor()
        # Guessed until the options are known: what cannot be parsed is also told in the format
        # that was asked for.
        self.settings = CommandSettings(
            output="json" if wants_json(self.argv, self.environment) else "text",
            stream=not {"--stream", "--follow"}.isdisjoint(self.argv),
            debug="--debug" in self.argv,
        )
        self.out = Output(self.settings, self.redactor)
        # What is known of the task, for hints.
        self.task_id = ""
        self.context_id = ""
        # The version of the protocol that is spoken with the agent, once that is known.
        self.spoken_version = ""
        # As it was last heard.
        self.status: TaskStatus | None = None
        # Whether the agent is shown who calls, by what was given or by an earlier login.
        self.has_credentials = False
        # What a file that was found decides about credentials, and the user agreed to.
        self.confirmed: set[str] = set()
        # Whether a file is sent that may be too large for the agent.
        self.has_large_file = False
        # Whether the command is about a task, and not a message for one.
        self.is_about_task = False

    def settle(self, settings: CommandSettings) -> None:
        """Take the options as they were found."""
        self.settings = settings
        self.redactor.add(settings.bearer, settings.api_key)
        values = (value for name, value in settings.svc_param if not is_open(name))
        self.redactor.add_values(*values)
        self.redactor.add_reference(settings.agent_card)
        self.out = Output(settings, self.redactor)
        for warning in settings.warnings:
            self.out.warn(warning)

    def take_reference(self, ref: str | None) -> None:
        """Take the agent that an argument names in place of -a; refuses both."""
        from dragoman.cli.failures import usage

        if ref:
            if self.settings.is_given("agent-card") and self.settings.agent_card != ref:
                raise usage("name the agent once: as an argument or by -a")
            self.settings.agent_card = ref


def is_open(parameter: str) -> bool:
    """Tell whether a service parameter is one of those that carry no secret."""
    return parameter.lower() in ("traceparent", "tracestate", "a2a-extensions", "accept-language")


def is_terminal(stream: TextIO | None) -> bool:
    """Tell whether a person is at the other end; a stream that is closed has none."""
    return stream is not None and stream.isatty()


def wants_json(argv: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Tell whether failures are to be JSON, before anything is parsed."""
    found = environment.get("A2ACLI_OUTPUT", "")
    words = iter(argv)
    for word in words:
        if word == "--":
            break
        if word in ("-o", "--output"):
            found = next(words, "")
        elif word.startswith("--output="):
            found = word.removeprefix("--output=")
        elif word.startswith("-o"):
            found = word[2:].removeprefix("=")
    return found == "json"
