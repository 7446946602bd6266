"""`dragoman auth login`: a token from the issuer that an agent's card names, kept for later runs.

Nothing is read from stdin: a person types a code in a browser, or a secret comes from a variable.
"""

from typing import TYPE_CHECKING, Any, Literal

import click

from dragoman.cli.failures import CREDENTIALS_MISSING, Failure, explain, usage
from dragoman.cli.grammar import CommandPlace, Group, command
from dragoman.cli.hints import again, filled, with_credential
from dragoman.cli.hints import command as line
from dragoman.cli.invocation import Invocation
from dragoman.cli.option import option
from dragoman.cli.sources import tokens_folder

if TYPE_CHECKING:
    # Heavy: loaded when an agent is called.
    from dragoman.client.credentials.logins import Login
    from dragoman.model.card import AgentCard

_GRANTS: dict[str, Literal["clientCredentials", "deviceCode"]] = {
    "device-code": "deviceCode",
    "client-credentials": "clientCredentials",
}
_ID, _SECRET = "A2ACLI_CLIENT_ID", "A2ACLI_CLIENT_SECRET"

auth = Group(
    "auth",
    help="Log in to an agent.",
    places={"login": CommandPlace("calling.auth:login", "Log in and store the token.")},
)


@command("login")
@option(
    "--flow",
    type=click.Choice([*_GRANTS]),
    metavar="<device-code|client-credentials>",
    help="How to log in; client-credentials if there is a secret, else device-code.",
)
@option("--scheme", default="", metavar="<name>", help="The scheme of the card to log in for.")
@option("--client-id", metavar="<id>", help=f"The client id at the issuer. ${_ID}.")
@option(
    "--client-secret",
    metavar="<secret>",
    help="The client's secret. A flag is visible in the process list and the shell history: "
    f"prefer {_SECRET}.",
)
@option("--scope", multiple=True, metavar="<scope>", help="Scope to ask for. Repeatable.")
@option("--issuer", default="", metavar="<url>", help="The issuer, if not as the card says.")
def login(
    run: Invocation,
    flow: str | None,
    scheme: str,
    client_id: str | None,
    client_secret: str | None,
    scope: tuple[str, ...],
    issuer: str,
) -> None:
    """Log in to an agent by its card's OAuth or OpenID Connect scheme, and keep the token.

    Later commands to the same agent send it, and renew it when it ends.
    """
    environment = run.settings.environment
    id = client_id or environment.get(_ID, "")
    secret = client_secret or environment.get(_SECRET, "")
    run.redactor.add(secret)
    if not id:
        raise usage(
            f"the issuer has to know who asks: --client-id or {_ID}",
            again(run, "--client-id", "<id>", without=("--client-id",)),
        )
    grant = _GRANTS[flow or ("client-credentials" if secret else "device-code")]
    if grant == "clientCredentials" and not secret:
        raise usage(
            f"client-credentials needs a secret: {_SECRET}",
            again(run, variable=f"{_SECRET}=<secret>"),
        )
    from dragoman.cli.found_env import check_agent
    from dragoman.cli.session import dialling, guarded, looking, selected

    check_agent(run, client_secret=secret)

    async def work() -> None:
        from dragoman.client.credentials.logins import log_in, login_scheme
        from dragoman.client.credentials.oauth import ClientAccount
        from dragoman.client.credentials.token_files import TokenStore
        from dragoman.errors import CredentialsMissing, Unauthenticated

        async with looking(run, secret=True) as agent, dialling(run, secret=True) as http:
            card = await agent.look()
            try:
                wanted = login_scheme(card, grant, scheme)
            except CredentialsMissing as error:
                raise _no_login(run, card, error) from None
            try:
                made = await log_in(
                    wanted,
                    grant,
                    ClientAccount(id, secret),
                    agent=selected(run, card, agent.raw_card).interface.url,
                    http=http,
                    origins=agent.origins,
                    show=_code_display(run),
                    issuer=issuer,
                    scopes=scope,
                )
            except Unauthenticated as error:
                refused = explain(error)
                refused.hint = again(run, variable=f"{_SECRET}=<secret>" if secret else "")
                raise refused from None
        run.redactor.add(made.token.access, made.token.refresh)
        store = TokenStore(tokens_folder(run.environment), warn=run.out.warn)
        store.save(made)
        _report(run, made, flow_name(grant))

    guarded(run, work)


def _no_login(run: Invocation, card: "AgentCard", error: Exception) -> Failure:
    """Return the failure of who wants to log in where that is not the way in."""
    from dragoman.client.credentials.credentials import schemes

    kinds = [scheme.kind for scheme in schemes(card).values()]
    if {"oauth2", "openIdConnect"}.isdisjoint(kinds):
        hint = with_credential(run, kinds, filled(line(run, "send"), "<message>"))
    else:
        hint = line(run, "card", "get")
    return Failure(CREDENTIALS_MISSING, str(error), hint=hint)


def flow_name(grant: str) -> str:
    """Return what a flow is called on the command line."""
    return next(name for name, known in _GRANTS.items() if known == grant)


def _code_display(run: Invocation) -> Any:
    def show(code: str, url: str, complete: str) -> None:
        run.out.note("Visit", complete or url)
        run.out.note("Code", code)

    return show


def _report(run: Invocation, made: "Login", flow: str) -> None:
    from datetime import UTC, datetime

    expires = None
    if made.token.expires_at is not None:
        moment = datetime.fromtimestamp(made.token.expires_at / 1000, UTC)
        expires = moment.isoformat(timespec="seconds").replace("+00:00", "Z")
    if run.out.is_json:
        about = {
            "origin": made.origin,
            "scheme": made.scheme,
            "issuer": made.issuer,
            "flow": flow,
            "scopes": list(made.scopes),
            "expiresAt": expires,
        }
        run.out.json({"login": about})
        return
    run.out.field("Agent", made.origin)
    run.out.field("Scheme", made.scheme)
    run.out.field("Issuer", made.issuer)
    run.out.field("Flow", flow)
    if made.scopes:
        run.out.field("Scopes", " ".join(made.scopes))
    if expires:
        run.out.field("Expires", expires)
