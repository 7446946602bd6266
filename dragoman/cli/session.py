"""A conversation with one agent, as the global options say: the client, the budget of time,
signals, and what the caller has to be told about ids when it ends early."""

import asyncio
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from dragoman.cli.failures import TIMEOUT, Failure, Interrupted, explain, usage
from dragoman.cli.hints import advise, again, command, filled, resume
from dragoman.cli.invocation import Invocation
from dragoman.cli.sources import cache_folder, catalog_of, tokens_folder
from dragoman.errors import A2AError, CredentialsMissing, PermissionDenied, Unauthenticated

if TYPE_CHECKING:
    # Heavy: loaded when an agent is called.
    import ssl

    from dragoman.client.cards.cards import Cards
    from dragoman.client.cards.interfaces import InterfaceCandidate
    from dragoman.client.client import Client
    from dragoman.client.credentials.credentials import Credential
    from dragoman.client.pending_request import Exchanged, Observer
    from dragoman.egress.egress import Egress
    from dragoman.egress.http1 import OnSent
    from dragoman.model.card import AgentCard
    from dragoman.model.events import ArtifactUpdate, StatusUpdate
    from dragoman.model.message import Message
    from dragoman.model.task import Task, TaskStatus

    Event = Task | Message | StatusUpdate | ArtifactUpdate

# Seconds.
CONNECT = 10.0
_ENDING = (signal.SIGINT, signal.SIGTERM)
# Which kinds of schemes take what is given by a flag.
_TAKES = {
    "--bearer": {"bearer", "oauth2", "openIdConnect"},
    "--api-key": {"apiKey"},
    "--client-cert": {"mtls"},
}


class Session:
    """An agent to talk to, and what is known of the task that is talked about."""

    def __init__(self, run: Invocation, agent: "Client") -> None:
        self.run = run
        self.out = run.out
        self.settings = run.settings
        self.agent = agent

    @property
    def can_stream(self) -> bool:
        """Tell whether the agent says that it streams."""
        return bool(self.agent.card.capabilities.streaming)

    def resume_context(self, context_id: str) -> str:
        """Return the command that goes on in a context."""
        return filled(command(self.run, "send", "--context-id", context_id), "<message>")

    def know(self, task_id: str, context_id: str, status: "TaskStatus | None" = None) -> None:
        """Remember ids and state, for when the run ends early."""
        run = self.run
        if task_id and task_id != run.task_id:
            # Nothing is known yet of this one.
            run.status = None
        run.task_id = task_id or run.task_id
        run.context_id = context_id or run.context_id
        run.status = status or run.status

    def waiting(self, event: "Event") -> None:
        """Tell the ids as soon as they are known: an interrupt must not lose them."""
        from dragoman.model.events import ArtifactUpdate
        from dragoman.model.message import Message
        from dragoman.model.task import Task

        if isinstance(event, Message):
            self.know(event.task_id, event.context_id)
            return
        task_id = event.id if isinstance(event, Task) else event.task_id
        if task_id != self.run.task_id:
            self.out.note("Waiting", f"task {task_id} context {event.context_id}")
        status = None if isinstance(event, ArtifactUpdate) else event.status
        self.know(task_id, event.context_id, status)
        if status is not None:
            word = status.name.removeprefix("TASK_STATE_").lower().replace("_", "-")
            said = status.message.text if status.message is not None else ""
            self.out.progress(f"{word}  {said}")

    def progress(self, event: "Event") -> None:
        """Tell what an agent says on the way, where its events are not shown themselves."""
        from dragoman.model.events import StatusUpdate

        self.waiting(event)
        if isinstance(event, StatusUpdate) and not event.status.state.is_resting:
            message = event.status.message
            if message is not None and message.text:
                self.out.note("Progress", message.text)

    def close(self, task: "Task", *, canceled: bool = False) -> None:
        """Write the next command, and warn of an end that is no success."""
        from dragoman.model.requests import open_requests
        from dragoman.model.task import TaskState

        state = task.status.state
        self.know(task.id, task.context_id, task.status)
        if not self.out.is_json:
            self.out.field("Resume", resume(self.run, state))
        is_expected = state is TaskState.CANCELED and canceled
        if state.is_resting and state is not TaskState.COMPLETED and not is_expected:
            verb = "ended" if state.is_terminal else "waits in"
            self.out.warn(f"task {task.id} {verb} {state.value}")
        if state is TaskState.AUTH_REQUIRED:
            # Both ways on: a reply, or an authorisation elsewhere, after which one follows it.
            if self.out.is_json:
                self.out.note("Resume", resume(self.run, state))
            follow = command(self.run, "task", "subscribe", task.id, "--until", "terminal")
            self.out.note("Hint", follow)
        # What is typed there is asked for field by field, and a credential goes out encrypted.
        requests = open_requests(task.status) if state.is_interrupted else ()
        if any(one.handoff is not None or one.kind == "form" for one in requests):
            self.out.note("Hint", command(self.run, "inbox", "answer", task.id))


def talk(
    run: Invocation, work: Callable[[Session], Awaitable[None]], *, live: bool = False
) -> None:
    """Do some work with the agent of the run, within its time; `live` shows a person that it is
    waited for, unless events are shown as they come."""
    guarded(run, lambda: _connected(run, work, live=live and not run.settings.stream))


def guarded(run: Invocation, work: Callable[[], Awaitable[None]]) -> None:
    """Do some work about the agent of the run, within its time."""
    if not run.settings.agent_card:
        raise usage("which agent? -a <ref> names it", remedy="-a localhost:8000")
    run.redactor.add_reference(run.settings.agent_card)
    asyncio.run(_guarded(run, work))


async def _guarded(run: Invocation, work: Callable[[], Awaitable[None]]) -> None:
    """Turn what ends the work into a failure with the next command to type."""
    ending = _Signals()
    limit = run.settings.timeout or None
    budget = asyncio.timeout(limit)
    try:
        async with budget:
            with ending:
                await work()
    except asyncio.CancelledError:
        if ending.came is None:
            raise
        raise _interrupted(run, ending.came) from None
    except TimeoutError:
        if not budget.expired():
            raise
        _tell_ids(run)
        hint = (
            command(run, "task", "get", "--wait", run.task_id)
            if run.task_id
            else again(run, "--timeout", f"{2 * (limit or 0):g}s", without=("--timeout",))
        )
        message = (
            f"{limit:g} s are over; the task goes on" if run.task_id else f"{limit:g} s are over"
        )
        raise Failure(TIMEOUT, message, hint=hint) from None
    except A2AError as error:
        if run.settings.debug and error.facts:
            run.out.debug(", ".join(f"{name}: {value}" for name, value in error.facts.items()))
        if isinstance(error, CredentialsMissing):
            _warn_unsent(run, error)
        failure = explain(error)
        advise(error, failure, run)
        raise failure from error


async def _connected(
    run: Invocation, work: Callable[[Session], Awaitable[None]], *, live: bool
) -> None:
    address = run.redactor.reference(run.settings.agent_card)
    with run.out.waiting_for(f"connecting to {address}") if live else nullcontext():
        await _with_agent(run, work)


async def _with_agent(run: Invocation, work: Callable[[Session], Awaitable[None]]) -> None:
    async with client_of(run) as agent:
        _warn(run, agent)
        try:
            await work(Session(run, agent))
        except (Unauthenticated, PermissionDenied) as error:
            error.facts["kinds"] = ",".join(_kinds(run, agent))
            raise


def _kinds(run: Invocation, agent: "Client") -> list[str]:
    """Return the kinds of the schemes that credentials were sent for."""
    from dragoman.client.credentials.credentials import choose

    sent = choose(agent.card, credentials_of(run), agent.interface.url)
    return [scheme.kind for scheme, _ in sent.attached]


def client_of(run: Invocation, *, secret: bool = False) -> "Client":
    """Return the client that the global options describe; `secret` as in `tls_of`."""
    from dragoman.cli.found_env import check_agent
    from dragoman.client.client import Client

    check_agent(run)
    settings = run.settings
    credentials = credentials_of(run)
    return Client(
        settings.agent_card,
        credentials=credentials,
        bindings=settings.transport,
        extensions=settings.extension,
        headers=dict(settings.svc_param),
        origins=settings.trust_origin,
        tls=tls_of(run, secret=secret),
        cards=cards_of(run),
        connect_timeout=CONNECT,
        on_sent=_upload(run),
        **_versions(run),
        **observing(run),
    )


def _upload(run: Invocation) -> "OnSent":
    """Return what shows a person how much of a long message has left."""

    def show(sent: int, total: int) -> None:
        part = f"{sent:,} of {total:,} bytes sent"
        run.out.progress(part if sent < total else f"{total:,} bytes sent, waiting for the answer")

    return show


@asynccontextmanager
async def looking(run: Invocation, *, secret: bool = False) -> "AsyncGenerator[Client]":
    """Give a client that only reads the card: nothing is chosen or checked."""
    agent = client_of(run, secret=secret)
    try:
        yield agent
    finally:
        await agent.close()


def selected(
    run: Invocation, card: "AgentCard", raw: "dict[str, Any] | None" = None
) -> "InterfaceCandidate":
    """Return the interface of a card that a command would talk to, and how."""
    from dragoman.client.cards.interfaces import candidates

    settings = run.settings
    return candidates(card, raw, bindings=settings.transport, **_versions(run))[0]


def is_older(version: str) -> bool:
    """Tell whether a version is one from before 1.0."""
    return version.startswith("0.")


def _versions(run: Invocation) -> dict[str, str]:
    """Return which versions are spoken: the one that is asked for; else 1.0 or newer, and what is
    older only with an agent that has nothing else, unless --strict-version forbids it."""
    version = run.settings.a2a_version
    oldest = "1.0" if run.settings.strict_version and not version else "0.2"
    return {"version": version, "oldest": oldest, "preferred": "1.0"}


def _warn(run: Invocation, agent: "Client") -> None:
    """Say what a credential's owner should know before anything is sent."""
    from dragoman.client.credentials.credentials import ApiKey, Bearer
    from dragoman.client.credentials.origins import is_loopback
    from dragoman.egress.targets import read_target

    interface = agent.interface
    run.out.debug(f"selected {interface.protocol_binding} {agent.version} at {interface.url}")
    run.spoken_version = agent.version
    if is_older(agent.version) and not run.settings.a2a_version:
        run.out.note(
            "Note",
            f"the agent offers nothing newer than {agent.version}, so that is spoken; "
            "--strict-version refuses it",
        )
    preferred = run.settings.transport
    if preferred and interface.protocol_binding.upper() not in preferred:
        run.out.debug(f"the card offers none of {', '.join(preferred)}: its own order holds")
    names: dict[type[Any], str] = {Bearer: "--bearer", ApiKey: "--api-key"}
    for credential in agent.unused_credentials:
        if name := names.get(type(credential)):
            run.out.warn(f"{name} is not sent: the card declares no scheme that takes it")
    is_plain = interface.url.startswith("http://")
    if not is_plain or is_loopback(read_target(interface.url)):
        return
    if run.settings.svc_param or credentials_of(run):
        run.out.warn(f"{interface.url} is plain http: others on the way can read credentials")


def _warn_unsent(run: Invocation, error: CredentialsMissing) -> None:
    """Say which credentials stayed here because the agent wants others."""
    if not (wanted := error.facts.get("kinds", "")):
        return
    settings = run.settings
    given = zip(_TAKES, (settings.bearer, settings.api_key, settings.client_cert), strict=True)
    for flag, value in given:
        if value:
            is_part = not _TAKES[flag].isdisjoint(wanted.split(","))
            why = "it is not all that the agent asks for" if is_part else "no scheme takes it"
            run.out.warn(f"{flag} is not sent: {why}")


@asynccontextmanager
async def dialling(run: Invocation, *, secret: bool = False) -> "AsyncGenerator[Egress]":
    """Give what dials out, for what needs no client; say whether secrets will go there."""
    from dragoman.egress.egress import Egress
    from dragoman.egress.targets import Anywhere

    tls = tls_of(run, secret=secret)
    async with Egress(policy=Anywhere(), tls=tls, connect_timeout=CONNECT) as http:
        yield http


class _Watch:
    """Says that the connection to an agent broke, once for each time that it does."""

    def __init__(self, run: Invocation, more: "Observer | None") -> None:
        self._run = run
        self._more = more
        self._is_broken = False

    def __call__(self, seen: "Exchanged") -> None:
        if self._more is not None:
            self._more(seen)
        if seen.kind in ("answer", "event"):
            self._is_broken = False
        elif seen.kind == "failure" and self._run.status is not None and not self._is_broken:
            self._is_broken = True
            self._run.out.note("Note", "the connection broke; trying again")


def observing(run: Invocation) -> dict[str, Any]:
    """Return what makes a client tell of breaks, and show its wire if that was asked for."""
    wire = None
    if run.settings.debug:
        from dragoman.cli.debug import WireTrace

        wire = WireTrace(run.out, run.redactor)
    return {"observer": _Watch(run, wire)}


def cards_of(run: Invocation) -> "Cards":
    """Return the cards of earlier runs."""
    from dragoman.client.cards.cards import Cards

    folder = cache_folder(run.environment) / "cards"
    return Cards(folder=folder, catalog=catalog_of(run.settings))


def credentials_of(run: Invocation) -> "list[Credential]":
    """Return what the user gave, and what earlier logins left."""
    from dragoman.client.credentials.credentials import ApiKey, Bearer, ClientCertificate

    settings = run.settings
    found: list[Credential] = []
    if settings.bearer:
        found.append(Bearer(settings.bearer))
    if settings.api_key:
        found.append(ApiKey(settings.api_key))
    if settings.client_cert:
        found.append(ClientCertificate(settings.client_cert, settings.client_key))
    found += stored(run)
    run.has_credentials = bool(found)
    return found


def stored(run: Invocation) -> "list[Credential]":
    """Return the tokens of earlier logins; each is for its own agent alone."""
    folder = tokens_folder(run.environment)
    if not folder.is_dir():
        return []
    from dragoman.client.credentials.logins import StoredToken
    from dragoman.client.credentials.token_files import TokenStore

    store = TokenStore(folder, warn=run.out.warn)
    logins = [login for login in store.all() if is_for(run, login.origin)]
    secret = run.settings.environment.get("A2ACLI_CLIENT_SECRET", "")
    run.redactor.add(secret, *(login.token.access for login in logins))
    run.redactor.add(*(login.token.refresh for login in logins))
    return [StoredToken(login, store, client_secret=secret) for login in logins]


def is_for(run: Invocation, origin: str) -> bool:
    """Tell whether something made for an origin may be used in this run at all."""
    from dragoman.client.cards.references import parse
    from dragoman.client.credentials.origins import Origins

    named = parse(run.settings.agent_card).origin
    # Of a file, its own interfaces are what the user names.
    return not named or origin in Origins(run.settings.trust_origin).also(named)


def tls_of(run: Invocation, *, secret: bool = False) -> "ssl.SSLContext | None":
    """Return how TLS is spoken, if not in the usual way; whether secrets go that way besides the
    given ones is for the caller to say."""
    settings = run.settings
    if settings.insecure:
        given = settings.bearer or settings.api_key or settings.svc_param or run.has_credentials
        more = ": CREDENTIALS GO TO WHOEVER ANSWERS" if given or secret else ""
        run.out.warn(f"--insecure: TLS certificates are not verified{more}")
    if settings.client_key and not settings.client_cert:
        raise usage("--client-key needs --client-cert", remedy="--client-cert <path>")
    if not (settings.insecure or settings.ca_cert or settings.client_cert):
        return None
    import ssl

    from dragoman.client.credentials.credentials import ClientCertificate

    context = ClientCertificate(settings.client_cert, settings.client_key).context(settings.ca_cert)
    if settings.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class _Signals:
    """Ends the running task at the first signal, and the process at the second."""

    def __init__(self) -> None:
        # The first that came.
        self.came: int | None = None
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        # Elsewhere they cannot be asked for.
        is_main = threading.current_thread() is threading.main_thread()
        self._is_ours = is_main and sys.platform != "win32"

    def __enter__(self) -> None:
        if self._is_ours:
            for number in _ENDING:
                self._loop.add_signal_handler(number, self._end, number)

    def __exit__(self, *_: object) -> None:
        if self._is_ours:
            for number in _ENDING:
                self._loop.remove_signal_handler(number)
                if self.came is not None:
                    # Another one while we leave is not waited for.
                    signal.signal(number, signal.SIG_DFL)

    def _end(self, number: int) -> None:
        if self.came is not None:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        self.came = number
        assert self._task is not None
        self._task.cancel()


def _interrupted(run: Invocation, number: int) -> Failure:
    hint = None
    if run.task_id:
        _tell_ids(run)
        hint = command(run, "task", "get", "--wait", run.task_id)
        if run.status is not None and run.status.state.is_interrupted:
            hint = resume(run, run.status.state)
        run.out.note("Resume", hint)
    return Interrupted(number, hint=hint)


def _tell_ids(run: Invocation) -> None:
    """Say what is known of the task, whatever ended the wait for it."""
    if run.task_id:
        run.out.note("Task", run.task_id)
    if run.context_id:
        run.out.note("Context", run.context_id)
    if run.status is not None:
        run.out.note("State", run.status.name)
