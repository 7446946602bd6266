"""`dragoman task push-config`: who is told of a task's events, and a receiver to see them come."""

from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.calling.task import TASK_ID, about
from dragoman.cli.failures import usage
from dragoman.cli.grammar import CommandPlace, Group, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.option import option
from dragoman.cli.own_options import show_table
from dragoman.cli.redaction import HIDDEN, Redactor
from dragoman.cli.terminal.table import Column

if TYPE_CHECKING:
    # Heavy: loaded when an agent is called.
    from dragoman.cli.output import Output
    from dragoman.model.push import PushConfig

push_config = Group(
    "push-config",
    help="Manage the receivers of a task's events.",
    places={
        "create": CommandPlace("calling.push_config:create", "Add a receiver."),
        "get": CommandPlace("calling.push_config:get", "Show one receiver."),
        "list": CommandPlace("calling.push_config:list_", "List a task's receivers."),
        "delete": CommandPlace("calling.push_config:delete", "Stop posting to a receiver."),
        "listen": CommandPlace("calling.listen:listen", "Receive a task's events here."),
    },
)
_COLUMNS = (
    Column("config", "id", "id"),
    Column("url", "url"),
    Column("authentication", "authentication"),
)
_CONFIG_ID = click.argument("config_id", metavar="CONFIG_ID")


@command("create")
@TASK_ID
@option("--url", required=True, metavar="<url>", help="Where events are posted to.")
@option("--id", "id", default="", metavar="<id>", help="Its id; the same id again replaces.")
@option("--token", default="", metavar="<t>", help="What every post shows in return.")
@option("--auth-scheme", default="", metavar="<s>", help="What the receiver asks for: Bearer.")
@option("--auth-credentials", default="", metavar="<c>", help="Its credentials.")
def create(
    run: Invocation,
    task_id: str,
    url: str,
    id: str,
    token: str,
    auth_scheme: str,
    auth_credentials: str,
) -> None:
    """Have a task's events posted to a URL."""
    if auth_credentials and not auth_scheme:
        raise usage("--auth-credentials needs --auth-scheme")
    run.redactor.add(token, auth_credentials)
    about(run, task_id)
    from dragoman.cli.session import Session, talk

    async def work(session: Session) -> None:
        from dragoman.model.push import PushAuthentication, PushConfig

        proof = PushAuthentication(auth_scheme, auth_credentials) if auth_scheme else None
        made = PushConfig(url=url, id=id, token=token, authentication=proof)
        show(session.out, await session.agent.create_push(task_id, made))

    talk(run, work)


@command("get")
@TASK_ID
@_CONFIG_ID
def get(run: Invocation, task_id: str, config_id: str) -> None:
    """Show one receiver of a task's events."""
    about(run, task_id)
    from dragoman.cli.session import Session, talk

    async def work(session: Session) -> None:
        show(session.out, await session.agent.get_push(task_id, config_id))

    talk(run, work)


@command("list")
@TASK_ID
@option("--limit", type=click.IntRange(1, 100), default=50, metavar="<1..100>", help="Page size.")
@option("--page-token", default="", metavar="<token>", help="The page to show.")
def list_(run: Invocation, task_id: str, limit: int, page_token: str) -> None:
    """List the receivers of a task's events."""
    about(run, task_id)
    from dragoman.cli.session import Session, talk

    async def work(session: Session) -> None:
        out = session.out
        page = await session.agent.push_page(task_id, page_size=limit, page_token=page_token)
        if out.is_json and not session.settings.stream:
            configs = [encoded(config) for config in page.configs]
            out.json({"configs": configs, "nextPageToken": page.next_page_token})
            return
        if out.is_table:
            rows = [
                {
                    "id": config.id,
                    "url": Redactor().text(config.url),
                    "authentication": config.authentication and config.authentication.scheme,
                }
                for config in page.configs
            ]
            empty = "no receiver is told of this task"
            show_table(run, rows, page.next_page_token, _COLUMNS, empty)
            return
        for config in page.configs:
            show(out, config)
        if not out.is_json:
            out.field("Next-Page", page.next_page_token)

    talk(run, work)


@command("delete")
@TASK_ID
@_CONFIG_ID
def delete(run: Invocation, task_id: str, config_id: str) -> None:
    """Stop posting to a receiver; to do it twice is fine."""
    about(run, task_id)
    from dragoman.cli.session import Session, talk

    async def work(session: Session) -> None:
        from dragoman.errors import TaskNotFound

        try:
            await session.agent.delete_push(task_id, config_id)
        except TaskNotFound:
            # Some agents say the same of a configuration that is not there.
            await session.agent.get(task_id, history=0)
        if session.out.is_json:
            session.out.json({})
        else:
            session.out.field("Task", task_id)
            session.out.field("Config", config_id)
            session.out.field("Deleted", "true")

    talk(run, work)


def encoded(config: "PushConfig") -> Any:
    """Return a configuration as 1.0 has it."""
    import msgspec

    from dragoman.dialects.v1_0 import V1_0
    from dragoman.model.operations import GetPush

    return msgspec.Raw(V1_0.encode_reply(GetPush(task_id=config.task_id), config))


def show(out: "Output", config: "PushConfig") -> None:
    """Show a configuration; its secrets are said to a program, and not to a terminal."""
    if out.is_json:
        out.json(encoded(config))
        return
    out.field("Config", config.id)
    out.field("Task", config.task_id)
    out.field("URL", Redactor().text(config.url))
    if config.token:
        out.field("Token", HIDDEN)
    if config.authentication is not None:
        out.field("Authentication", f"{config.authentication.scheme} {HIDDEN}")
