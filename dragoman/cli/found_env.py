"""What a `.env` that was only found may decide: not where credentials go that are not its own.

Such a file comes with a folder, and a folder may come from anybody. It is read all the same. But
where it names the agent, the gateway or the catalog, or takes away what protects a connection, and
a credential of the user would go there, the user is told before anything is sent, and says yes: by
`--config`, or at a terminal.
"""

import sys
from collections.abc import Sequence
from typing import NamedTuple

from dragoman.cli.failures import Failure, usage
from dragoman.cli.invocation import Invocation, is_open, is_terminal
from dragoman.cli.options import BY_NAME
from dragoman.cli.output import one_line
from dragoman.cli.sources import CATALOG, tokens_folder

GATEWAY, ADMIN_TOKEN = "DRAGOMAN_GATEWAY", "DRAGOMAN_ADMIN_TOKEN"
COLLECTOR = "DRAGOMAN_OTLP_ENDPOINT"
# What protects a connection, or widens where credentials go.
_PROTECTION = ("trust-origin", "ca-cert", "insecure")
_CREDENTIALS = ("bearer", "api-key", "client-cert")
# What is sent to a collector; the variables are those of OpenTelemetry.
_COLLECTOR_HEADERS = tuple(
    f"OTEL_EXPORTER_OTLP_{kind}HEADERS" for kind in ("", "TRACES_", "METRICS_", "LOGS_")
)
_YES = ("y", "yes")


class _Credential(NamedTuple):
    name: str
    # Whether it goes to one origin alone, whatever is named.
    is_bound: bool = False

    @property
    def is_typed(self) -> bool:
        """Whether the user gave it for this very run."""
        return self.name.startswith("--")


def check_agent(run: Invocation, *, client_secret: str = "") -> None:
    """Raise a failure unless the user's credentials may go where the agent of the run is."""
    found = _protection(run)
    place, named = _from_option(run, "agent-card"), run.settings.agent_card
    # An argument may name another one than the file does.
    is_its_own = named == run.settings.environment.get(BY_NAME["agent-card"].variable)
    places = [place] if place and is_its_own and named not in run.argv else []
    if named.startswith("@") and (catalog := _from_variable(run, CATALOG)):
        places.append(catalog)
    _check(run, places, found, [*_own_credentials(run, client_secret), *_logins(run)])


def check_gateway(run: Invocation) -> None:
    """Raise a failure unless the user's credentials may go to the gateway that is named."""
    place = _from_variable(run, GATEWAY)
    is_typed = any(word == "--gateway" or word.startswith("--gateway=") for word in run.argv)
    credentials = [
        one for one in _own_credentials(run) if one.name != BY_NAME["client-cert"].variable
    ]
    if run.settings.environment.get(ADMIN_TOKEN) and not _from_variable(run, ADMIN_TOKEN):
        credentials.append(_Credential(ADMIN_TOKEN))
    if any(word == "--admin-token" or word.startswith("--admin-token=") for word in run.argv):
        credentials.append(_Credential("--admin-token"))
    _check(run, [place] if place and not is_typed else [], _protection(run), credentials)


def check_collector(run: Invocation) -> None:
    """Raise a failure unless what traces and metrics are sent with may go to their collector."""
    place = _from_variable(run, COLLECTOR)
    is_typed = any(word.startswith("--otlp-endpoint") for word in run.argv)
    sent = [_Credential(name) for name in _COLLECTOR_HEADERS if run.environment.get(name)]
    _check(run, [place] if place and not is_typed else [], [], sent)


def _check(
    run: Invocation,
    places: Sequence[str],
    protection: Sequence[str],
    credentials: Sequence[_Credential],
) -> None:
    """Tell, and have the user say yes, if a found file decides about credentials of others."""
    concerned = [one for one in credentials if protection or (places and not one.is_bound)]
    values = ", ".join([*places, *protection])
    if not values or not concerned or values in run.confirmed:
        return
    path, names = run.settings.found_file, ", ".join(one.name for one in concerned)
    warning = f"{path} was found here and says {values}; {names} would go there"
    run.out.warn(warning)
    if not all(one.is_typed for one in concerned) and not _is_confirmed(run):
        raise _refusal(run, warning, path)
    run.confirmed.add(values)


def _is_confirmed(run: Invocation) -> bool:
    """Ask the person at the terminal, if there is one."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        return False
    sys.stderr.write("Send it there? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in _YES


def _refusal(run: Invocation, warning: str, path: str) -> Failure:
    from dragoman.cli.hints import again

    return usage(
        f"{warning}: nothing was sent. If you mean it, name the file (--config) or the address",
        again(run, "--config", path),
    )


def _protection(run: Invocation) -> list[str]:
    return [value for name in _PROTECTION if (value := _from_option(run, name))]


def _own_credentials(run: Invocation, client_secret: str = "") -> list[_Credential]:
    """Return the credentials that are not the found file's own."""
    settings = run.settings
    found = [
        _Credential(_flag_or_variable(run, name), is_bound=settings.origins[name].rank == 4)
        for name in _CREDENTIALS
        if name in settings.origins
        and getattr(settings, BY_NAME[name].field)
        and not _from_option(run, name)
    ]
    if any(not is_open(name) for name, _ in settings.svc_param):
        is_bound = settings.origins["svc-param"].rank == 4
        if not _from_option(run, "svc-param"):
            found.append(_Credential(_flag_or_variable(run, "svc-param"), is_bound))
    if client_secret and not _from_variable(run, "A2ACLI_CLIENT_SECRET"):
        found.append(_Credential("the client's secret"))
    return found


def _logins(run: Invocation) -> list[_Credential]:
    folder = tokens_folder(run.environment)
    # Each is for its own origin, as long as the connection is what it should be.
    has_any = folder.is_dir() and any(folder.iterdir())
    return [_Credential("what dragoman auth login keeps", is_bound=True)] if has_any else []


def _flag_or_variable(run: Invocation, name: str) -> str:
    row = BY_NAME[name]
    return row.flag if run.settings.is_given(name) else row.variable


def _from_option(run: Invocation, name: str) -> str:
    """Return what a found file says of an option, where that is what holds."""
    settings = run.settings
    origin = settings.origins.get(name)
    value = getattr(settings, BY_NAME[name].field)
    if not settings.found_file or origin is None or origin.path != settings.found_file or not value:
        return ""
    return _redacted(run, BY_NAME[name].variable)


def _from_variable(run: Invocation, variable: str) -> str:
    """Return what a found file says of a variable, where that is what holds."""
    settings = run.settings
    origin = settings.from_files.get(variable)
    is_found = origin is not None and origin.path == settings.found_file
    if not settings.found_file or not is_found or run.environment.get(variable):
        return ""
    return _redacted(run, variable) if settings.environment.get(variable) else ""


def _redacted(run: Invocation, variable: str) -> str:
    value = run.settings.environment.get(variable, "")
    return one_line(f"{variable}={run.redactor.reference(value)}")
