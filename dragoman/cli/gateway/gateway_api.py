"""Asks a running gateway by its REST API; all commands that do so use it.

The token is best given by its variable; it is never shown.
"""

import asyncio
import functools
import random
import re
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote, urlencode

import click
from click.core import ParameterSource

from dragoman.cli.failures import AUTH_FAILED, INTERNAL, UNREACHABLE, Failure, usage
from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import added, budget, own, typed_option, wrong_token
from dragoman.cli.redaction import NextCommand
from dragoman.egress.plain_words import plain

if TYPE_CHECKING:
    # Heavy: loaded when a command runs.
    from dragoman.egress.egress import Egress

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
DEFAULT = "http://127.0.0.1:8000"
AGENT_NOT_FOUND = "DRAGOMAN_ERR_AGENT_NOT_FOUND"
GATEWAY = "DRAGOMAN_ERR_GATEWAY"
NOT_FOUND = "DRAGOMAN_ERR_NOT_FOUND"
CREDITS = "DRAGOMAN_ERR_INSUFFICIENT_CREDITS"
_CODES = {
    "AGENT_NOT_FOUND": AGENT_NOT_FOUND,
    "TASK_NOT_FOUND": "TaskNotFoundError",
    "NOT_FOUND": NOT_FOUND,
    "INSUFFICIENT_CREDITS": CREDITS,
    "VALIDATION_ERROR": "InvalidParamsError",
    "UNAUTHORIZED": AUTH_FAILED,
    "FORBIDDEN": AUTH_FAILED,
    "RATE_LIMIT_EXCEEDED": UNREACHABLE,
    "UNAVAILABLE": UNREACHABLE,
    "INTERNAL_ERROR": INTERNAL,
    # Of the operator API.
    "INVALID_ARGUMENT": "InvalidParamsError",
    "UNAUTHENTICATED": AUTH_FAILED,
    "PERMISSION_DENIED": AUTH_FAILED,
    "RESOURCE_EXHAUSTED": UNREACHABLE,
    "FAILED_PRECONDITION": "UnsupportedOperationError",
    "INTERNAL": INTERNAL,
}
# Bytes of an answer of the operator API: a whole log of trust may be one.
_LARGEST = 256 * 1024 * 1024
# Polls that may fail one after the other, and the longest time between two, in seconds.
_TRIES = 5
_LONGEST_PAUSE = 15.0
_TOKEN = own(
    "--admin-token",
    default="",
    metavar="<token>",
    help="A token or an API key for it; without one, what A2ACLI_BEARER or A2ACLI_API_KEY "
    "holds. A flag is visible in the process list and "
    "in your shell's history; better use",
)
_GATEWAY_OPTIONS = added(
    [own("--gateway", default=DEFAULT, metavar="<url>", help="The gateway."), _TOKEN]
)
# For commands that work on a store's file unless --gateway is typed. The variable is not read: it
# must not redirect a command that is meant for a file.
ELSEWHERE_OPTIONS = added(
    [
        typed_option(
            "--gateway",
            default="",
            metavar="<url>",
            help="Ask this running gateway, instead of the store's file.",
        ),
        _TOKEN,
    ]
)
LIMIT = own(
    "--limit", type=click.IntRange(1, 100), default=50, metavar="<1..100>", help="Page size (50)."
)
NUMBER = typed_option(
    "--number",
    type=click.IntRange(min=1),
    default=None,
    metavar="<number>",
    help="Which task, where several have this id: the gateway's own number of it.",
)


class GatewayApi:
    """One gateway, asked with one credential."""

    def __init__(
        self, run: Invocation, url: str, token: str, hints: Mapping[str, str] | None = None
    ) -> None:
        from dragoman.cli.found_env import check_gateway
        from dragoman.client.cards.references import with_scheme
        from dragoman.egress.targets import NotCanonical, read_target
        from dragoman.errors import ConfigError

        self._run = run
        # The next command, by the code of a refusal.
        self._hints = {"AGENT_NOT_FOUND": "agents list", "INSUFFICIENT_CREDITS": "credits balance"}
        self._hints.update(hints or {})
        check_gateway(run)
        # The credentials of `send` are enough: not only operators register agents.
        token = token or run.settings.bearer or run.settings.api_key
        from dragoman.client.gateway_api import KEYS

        self._is_key = token.startswith(KEYS) or token == run.settings.api_key
        self._token = token
        run.redactor.add(token)
        try:
            self.url = read_target(with_scheme(url)).url.rstrip("/")
        except NotCanonical as error:
            raise usage(
                f"--gateway must be a URL such as {DEFAULT}: {error}", remedy=f"--gateway {DEFAULT}"
            ) from None
        if token and not token.isprintable():
            raise ConfigError("--admin-token has a character that no header can have")

    def ask(
        self,
        verb: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str | int | None] | None = None,
    ) -> Any:
        """Return what the gateway answers; raises `Failure`."""
        with budget(self._run):
            return asyncio.run(self._ask(verb, path, body, query))

    def operate(self, verb: str, path: str, body: Any = None) -> bytes:
        """Return the JSON that the operator API of the gateway answers; raises `Failure`."""
        from dragoman.client.gateway_api import bare_of

        url = f"{self.url}/api/v1/console/{path}"
        with budget(self._run):
            status, answer = asyncio.run(self._exchange(verb, url, body, _LARGEST))
        return self._held(bare_of, status, answer)

    def page(
        self,
        path: str,
        items: str,
        page_token: str,
        query: Mapping[str, str | int | None],
        cursor: str = "after",
    ) -> tuple[list[dict[str, Any]], str]:
        """Return a page of a list, which the answer has as `items`, and the token of the next;
        empty: there is none."""
        try:
            found = self.ask("GET", path, query={**query, cursor: page_token})
        except Failure as failure:
            # Errors of a gateway begin with the name of the field.
            raise wrong_token() if failure.message.startswith(f"{cursor}:") else failure from None
        return found[items], str(found.get("next", ""))

    def poll(self, path: str, see: Callable[[Any], bool]) -> Any:
        """Read a path repeatedly until `see` returns true; return what was read last. A gateway
        that is away for a moment is asked again."""
        with budget(self._run):
            return asyncio.run(self._poll(path, see))

    async def _poll(self, path: str, see: Callable[[Any], bool]) -> Any:
        settings = self._run.settings
        pause, failures = settings.poll_interval, 0
        while True:
            try:
                found = await self._ask("GET", path)
            except Failure as failure:
                failures += 1
                if failure.code != UNREACHABLE or failures == _TRIES:
                    raise
                await asyncio.sleep(min(pause * 2**failures, 30.0) * random.uniform(0.8, 1.0))
                continue
            failures = 0
            if see(found):
                return found
            await asyncio.sleep(pause)
            if settings.explicit_interval is None:
                pause = min(pause * 1.5, _LONGEST_PAUSE)

    def command(self, *words: str) -> NextCommand:
        """Return a command about the same gateway, as a shell takes it."""
        context = click.get_current_context()
        is_typed = context.get_parameter_source("gateway") is ParameterSource.COMMANDLINE
        more = ["--gateway", self._run.redactor.text(self.url)] if is_typed else []
        return NextCommand(" ".join(["dragoman", *map(shlex.quote, [*words, *more])]))

    async def _ask(
        self,
        verb: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str | int | None] | None = None,
    ) -> Any:
        given = {name: value for name, value in (query or {}).items() if value not in ("", None)}
        url = f"{self.url}/api/v1/{path}" + (f"?{urlencode(given)}" if given else "")
        from dragoman.client.gateway_api import LARGEST, data_of

        return self._held(data_of, *await self._exchange(verb, url, body, LARGEST))

    async def _exchange(self, verb: str, url: str, body: Any, largest: int) -> tuple[int, bytes]:
        from dragoman.cli.session import dialling
        from dragoman.client.gateway_api import exchange
        from dragoman.egress.errors import EgressError

        http: Egress
        async with dialling(self._run, secret=bool(self._token)) as http:
            try:
                answer = await exchange(
                    http, verb, url, headers=self._credential(), body=body, largest=largest
                )
            except EgressError as error:
                raise Failure(
                    UNREACHABLE,
                    f"the gateway at {self.url} could not be reached: {plain(error.reason)}",
                    hint=_starting(self.url),
                ) from None
        return answer.status, answer.body

    def _credential(self) -> dict[str, str]:
        if not self._token:
            return {}
        if self._is_key:
            return {"x-api-key": self._token}
        return {"authorization": f"Bearer {self._token}"}

    def _held(self, read: Callable[[int, bytes], T], status: int, answer: bytes) -> T:
        """Return what an answer holds; a refusal is raised as `Failure`."""
        from dragoman.client.gateway_api import GatewayRefused

        try:
            return read(status, answer)
        except GatewayRefused as refused:
            if not refused.is_json:
                raise Failure(
                    GATEWAY,
                    f"{self.url} answered with HTTP {status} and no JSON; is it a gateway?",
                    hint=f"dragoman doctor {shlex.quote(self.url)}",
                ) from None
            none = f"{self.url} answered with HTTP {status} and no reason; is it a gateway?"
            is_other = status not in (401, 403) and not refused.code.isupper()
            if refused.message and is_other:
                # The codes of gateways are upper case: this is another server.
                refused.message += f"; is {self.url} a gateway?"
            refused.message = plain(refused.message)
            if scope := _scope(refused.details):
                refused.message += f"; it takes a credential with the scope {scope}"
            if numbers := _candidate_numbers(refused.details):
                refused.message += f": {', '.join(numbers)}; say which by --number"
            raise Failure(
                _CODES.get(refused.code, AUTH_FAILED if status in (401, 403) else GATEWAY),
                refused.message or none,
                hint=self._hint(refused.code, status, refused.details)
                or _look_at_card(self.url if is_other else _cardless(refused.message)),
            ) from None

    def _hint(self, code: str, status: int, details: Any) -> str | None:
        from dragoman.cli.hints import again

        if code == "CONFLICT" and isinstance(details, dict):
            if numbers := _candidate_numbers(details):
                return again(self._run, "--number", numbers[0], without=("--number",))
            named = cast("dict[str, Any]", details).get("agentId", "")
            return f"dragoman agents show {quote(str(named), safe='')} -o json"
        if words := self._hints.get(code):
            return self.command(*words.split())
        if code == "TASK_NOT_FOUND":
            return NextCommand(f"dragoman task list -a {self._run.redactor.text(self.url)}")
        scope = _scope(details)
        if status == 401 or scope:
            token = f"<token with scope {scope}>" if scope else "<token>"
            variable = f"A2ACLI_BEARER={token}"
            return again(self._run, variable=variable, without=("--admin-token",))
        return None


def asks_gateway(hints: Mapping[str, str] | None = None) -> Callable[[F], F]:
    """Give a command the options that name a gateway; the function gets the gateway as `api`.
    `hints` are next commands by the code of a refusal."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(run: Invocation, gateway: str, admin_token: str, **given: Any) -> Any:
            return function(run, api=GatewayApi(run, gateway, admin_token, hints), **given)

        return _GATEWAY_OPTIONS(cast(F, call))

    return decorate


def elsewhere(
    run: Invocation, url: str, token: str, hints: Mapping[str, str] | None = None
) -> GatewayApi:
    """Return the gateway that is asked instead of a store's file; refuses both."""
    source = click.get_current_context().get_parameter_source
    for name in ("store", "audit"):
        if source(name) is ParameterSource.COMMANDLINE:
            raise usage(f"--{name} is about a file, and --gateway about a gateway: give one")
    return GatewayApi(run, url, token, hints)


def _cardless(message: str) -> str:
    """Return the host whose card the gateway could not read; empty: it is about something else."""
    found = re.search(r"card could not be fetched from (\S+?):(?= )", message)
    return found[1] if found else ""


def _look_at_card(address: str) -> NextCommand | None:
    return NextCommand(f"dragoman card get -a {shlex.quote(address)}") if address else None


def _starting(url: str) -> NextCommand:
    """Return what starts the gateway that is not there, or looks at one on another machine."""
    from dragoman.client.credentials.origins import is_loopback
    from dragoman.egress.targets import read_target

    target = read_target(url)
    if not is_loopback(target):
        return NextCommand(f"dragoman doctor {shlex.quote(url)}")
    port = "" if target.port == 8000 else f" --port {target.port}"
    return NextCommand(f"dragoman up{port}")


def _scope(details: Any) -> str:
    """Return the scope that a credential lacks; empty: the error is another."""
    if isinstance(details, list):
        # Of the operator API, whose details are those of the REST binding.
        first: Any = next(iter(cast("list[Any]", details)), None)
        details = cast("dict[str, Any]", first).get("metadata") if type(first) is dict else None
    found = cast("dict[str, Any]", details).get("scope") if isinstance(details, dict) else None
    return found if isinstance(found, str) else ""


def _candidate_numbers(details: Any) -> list[str]:
    """Return the numbers of the tasks that could be meant, where an id is that of several."""
    listed = cast("dict[str, Any]", details).get("tasks") if isinstance(details, dict) else None
    tasks = cast("list[Any]", listed) if isinstance(listed, list) else []
    return [str(cast("dict[str, Any]", one).get("number")) for one in tasks if type(one) is dict]


def task_path(task: str, step: str) -> str:
    """Return a path below a task."""
    return f"tasks/{quote(task, safe='')}/{step}"


def path_of(name: str, *steps: str) -> str:
    """Return the path of an agent, whose name may begin with an @."""
    return "/".join(["agents", quote(name.removeprefix("@"), safe=""), *steps])
