"""Asks a running gateway, by its REST API: what commands that do so share.

The token is best given by its variable; wherever it comes from, it is shown nowhere.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlencode

from dragoman.cli.failures import AUTH_FAILED, INTERNAL, UNREACHABLE, Failure, usage
from dragoman.cli.invocation import Invocation
from dragoman.cli.own import added, budget, own

if TYPE_CHECKING:
    # Heavy: loaded when a command runs.
    from dragoman.security.egress import Egress

DEFAULT = "http://127.0.0.1:8000"
AGENT_NOT_FOUND = "DRAGOMAN_ERR_AGENT_NOT_FOUND"
GATEWAY = "DRAGOMAN_ERR_GATEWAY"
# What our keys begin with.
_KEYS = ("dgm_", "nxk_")
_CODES = {
    "AGENT_NOT_FOUND": AGENT_NOT_FOUND,
    "VALIDATION_ERROR": "InvalidParamsError",
    "UNAUTHORIZED": AUTH_FAILED,
    "FORBIDDEN": AUTH_FAILED,
    "RATE_LIMIT_EXCEEDED": UNREACHABLE,
    "UNAVAILABLE": UNREACHABLE,
    "INTERNAL_ERROR": INTERNAL,
}
GATEWAY_OPTIONS = added(
    [
        own("--gateway", default=DEFAULT, metavar="<url>", help="The gateway."),
        own(
            "--admin-token",
            default="",
            metavar="<token>",
            help="A token or an API key for it; without one, what A2ACLI_BEARER or A2ACLI_API_KEY "
            "holds. As a flag it is seen in the process list and in the history of your shell; "
            "better is",
        ),
    ]
)


class GatewayApi:
    """One gateway, and who asks it."""

    def __init__(self, run: Invocation, url: str, token: str) -> None:
        from dragoman.cli.found_file import check_gateway
        from dragoman.errors import ConfigError
        from dragoman.security.targets import NotCanonical, read_target

        self._run = run
        check_gateway(run, url)
        # What `send` takes will do: registering is no act of operators alone.
        token = token or run.settings.bearer or run.settings.api_key
        self._is_key = token.startswith(_KEYS) or token == run.settings.api_key
        self._token = token
        run.redactor.add(token)
        try:
            self.url = read_target(url).url.rstrip("/")
        except NotCanonical as error:
            raise usage(f"--gateway must be a URL such as {DEFAULT}: {error}") from None
        if token and not token.isprintable():
            raise ConfigError("--admin-token has a character that no header can have")

    def ask(
        self,
        verb: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str | int] | None = None,
    ) -> Any:
        """Return what the gateway answers; raises `Failure`."""
        given = {name: value for name, value in (query or {}).items() if value not in ("", None)}
        url = f"{self.url}/api/v1/{path}" + (f"?{urlencode(given)}" if given else "")
        with budget(self._run):
            status, answer = asyncio.run(self._exchange(verb, url, body))
        return self._data(status, answer)

    async def _exchange(self, verb: str, url: str, body: Any) -> tuple[int, bytes]:
        from dragoman.cli.session import dialling
        from dragoman.client.gateway_api import exchange
        from dragoman.security.egress import EgressError

        http: Egress
        async with dialling(self._run, secret=bool(self._token)) as http:
            try:
                answer = await exchange(http, verb, url, headers=self._credential(), body=body)
            except EgressError as error:
                raise Failure(
                    UNREACHABLE,
                    f"the gateway at {self.url} could not be reached: {error.reason}",
                    hint="dragoman up",
                ) from None
        return answer.status, answer.body

    def _credential(self) -> dict[str, str]:
        if not self._token:
            return {}
        if self._is_key:
            return {"x-api-key": self._token}
        return {"authorization": f"Bearer {self._token}"}

    def _data(self, status: int, answer: bytes) -> Any:
        from dragoman.client.gateway_api import GatewayRefused, data_of

        try:
            return data_of(status, answer)
        except GatewayRefused as refused:
            if not refused.is_json:
                raise Failure(
                    GATEWAY,
                    f"{self.url} answered with HTTP {status} and no JSON; is it a gateway?",
                ) from None
            none = f"{self.url} answered with HTTP {status} and no reason; is it a gateway?"
            raise Failure(
                _CODES.get(refused.code, AUTH_FAILED if status in (401, 403) else GATEWAY),
                refused.message or none,
                hint=self._hint(refused.code, status, refused.details),
            ) from None

    def _hint(self, code: str, status: int, details: Any) -> str | None:
        from dragoman.cli.hints import again

        if code == "AGENT_NOT_FOUND":
            return "dragoman agents list"
        if code == "CONFLICT" and isinstance(details, dict):
            named = cast("dict[str, Any]", details).get("agentId", "")
            return f"dragoman agents show {quote(str(named), safe='')} -o json"
        if status == 401:
            return again(self._run, variable="A2ACLI_BEARER=<token>", without=("--admin-token",))
        return None


def path_of(name: str, *steps: str) -> str:
    """Return the path of an agent; it may be named with an @, as elsewhere."""
    return "/".join(["agents", quote(name.removeprefix("@"), safe=""), *steps])
