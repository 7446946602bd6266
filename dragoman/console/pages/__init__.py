"""The pages: one file each. A page is a function from what the API answers to a template; the
table below says at which path it is, and which of them take what is submitted."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from dragoman.console.pages import (
    agent,
    agents,
    delivery,
    docs,
    export,
    inbox,
    money,
    overview,
    system,
    task,
    tasks,
    triggers,
)
from dragoman.console.visit import Page


class _Row(NamedTuple):
    path: str
    pattern: re.Pattern[str]
    page: Page
    is_form: bool


def _row(path: str, page: Page, *, is_form: bool = False) -> _Row:
    """Return a row of the table; `{name}` stands for one segment of a path."""
    return _Row(
        path.replace("\\", ""),
        re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)),
        page,
        is_form,
    )


_TABLE = [
    _row("/", overview.show),
    _row("/tasks", tasks.show),
    _row("/tasks", tasks.cancel_several, is_form=True),
    _row("/tasks/{id}", task.conversation),
    _row("/tasks/{id}/timeline", task.timeline_view),
    _row("/tasks/{id}/raw", task.raw),
    _row("/tasks/{id}/tree", task.tree),
    _row("/tasks/{id}/scrubber", task.scrubber),
    _row("/tasks/{id}/files/{key}", task.file),
    _row(r"/tasks/{id}/export\.html", export.as_html),
    _row(r"/tasks/{id}/export\.json", export.as_json),
    _row("/tasks/{id}/cassette", export.as_cassette),
    _row("/tasks/{id}/cancel", task.cancel, is_form=True),
    _row("/tasks/{id}/answer", task.answer, is_form=True),
    _row("/tasks/{id}/again", task.send_again, is_form=True),
    _row("/inbox", inbox.show),
    _row("/inbox/{id}", inbox.question),
    _row("/inbox/{id}", inbox.answer, is_form=True),
    _row("/agents", agents.show),
    _row("/agents", agents.register, is_form=True),
    _row("/agents/{name}", agent.show),
    _row("/agents/{name}", agent.send, is_form=True),
    _row("/agents/{name}/probe", agent.probe, is_form=True),
    _row("/agents/{name}/accept", agent.accept, is_form=True),
    _row("/agents/{name}/refuse", agent.refuse, is_form=True),
    _row("/agents/{name}/pause", agent.pause, is_form=True),
    _row("/agents/{name}/resume", agent.resume, is_form=True),
    _row("/agents/{name}/remove", agent.remove, is_form=True),
    _row("/triggers", triggers.show),
    _row("/triggers", triggers.create, is_form=True),
    _row("/triggers/{id}/change", triggers.change, is_form=True),
    _row("/triggers/{id}/pause", triggers.pause, is_form=True),
    _row("/triggers/{id}/resume", triggers.resume, is_form=True),
    _row("/triggers/{id}/run", triggers.run, is_form=True),
    _row("/triggers/{id}/secret", triggers.replace_secret, is_form=True),
    _row("/triggers/{id}/remove", triggers.remove, is_form=True),
    _row("/agents/{name}/rollouts/{rollout}/mode/{mode}", agent.change_rollout, is_form=True),
    _row("/agents/{name}/rollouts/{rollout}/promote", agent.promote, is_form=True),
    _row("/agents/{name}/rollouts/{rollout}/rollback", agent.roll_back, is_form=True),
    _row("/delivery", delivery.show),
    _row("/delivery/replay", delivery.replay, is_form=True),
    _row("/delivery/drop", delivery.drop, is_form=True),
    _row("/delivery/{number}/retry", delivery.retry, is_form=True),
    _row("/money", money.show),
    _row("/money/receipts/{task}", money.receipt),
    _row("/money/accept", money.accept, is_form=True),
    _row("/money/dispute", money.dispute, is_form=True),
    _row("/money/refund", money.refund, is_form=True),
    _row("/money/resolve", money.resolve, is_form=True),
    _row("/system", system.show),
    _row("/system/processes/{number}/drain", system.drain, is_form=True),
    _row("/system/keys/{id}/revoke", system.revoke_key, is_form=True),
    _row("/docs", docs.show),
    _row("/docs", docs.send, is_form=True),
]


def paths(*, is_form: bool = False) -> list[str]:
    """Return the paths of all pages that are read, or that take what is submitted."""
    return [row.path for row in _TABLE if row.is_form == is_form]


def find(path: str, *, is_form: bool = False) -> tuple[Page, Mapping[str, str]] | None:
    """Return the page at a path, and what stands in the path."""
    for row in _TABLE:
        if row.is_form == is_form and (found := row.pattern.fullmatch(path)):
            return row.page, found.groupdict()
    return None
