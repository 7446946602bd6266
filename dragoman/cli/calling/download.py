"""`dragoman task download`: what a task made, as files of the user's.

Everything is read and named before anything is written; files appear whole or not at all, never in
place of others unless that was asked for, and never through a link.
"""

import hashlib
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.calling.file_names import ending, file_name, numbered
from dragoman.cli.calling.task import TASK_ID, about
from dragoman.cli.failures import INTERNAL, UNREACHABLE, Failure, usage
from dragoman.cli.grammar import command
from dragoman.cli.hints import again, look_at
from dragoman.cli.invocation import Invocation
from dragoman.cli.option import option
from dragoman.egress.plain_words import plain

if TYPE_CHECKING:
    # Heavy: loaded when an agent is called.
    from dragoman.cli.session import Session
    from dragoman.model.artifact import Artifact
    from dragoman.model.message import Part
    from dragoman.model.task import Task

MOST = 256 * 1024 * 1024
_SAVED = "dragoman:saved"
_FETCH = 120.0
_REDIRECTS = 3
# What a proxy before a server answers when the server does not.
_AWAY = frozenset({502, 503, 504})


@dataclass
class FileToDownload:
    """A file to be: of one artifact, from one part or several that belong together."""

    artifact: int
    parts: list[int]
    name: str
    media_type: str
    body: bytearray = field(default_factory=bytearray)
    path: Path = Path()
    digest: str = ""


@command("download")
@TASK_ID
@option("--artifact", multiple=True, metavar="<id>", help="Only this artifact. Repeatable.")
@option("--output-dir", default=".", metavar="<dir>", help="Where files go.")
@option("--overwrite", switch=True, help="Overwrite existing files.")
@option("--fetch-urls", switch=True, help="Also fetch what is only named by an https address.")
@option(
    "--max-bytes", type=click.IntRange(1), default=MOST, metavar="<n>", help="Most bytes in total."
)
def download(
    run: Invocation,
    task_id: str,
    artifact: tuple[str, ...],
    output_dir: str,
    overwrite: bool,
    fetch_urls: bool,
    max_bytes: int,
) -> None:
    """Save what a task made as files."""
    about(run, task_id)
    folder = Path(output_dir).expanduser()
    from dragoman.cli.session import Session, talk

    async def work(session: Session) -> None:
        task = await session.agent.get(task_id)
        session.know(task.id, task.context_id, task.status)
        chosen = _artifacts_of(task, artifact)
        files = gathered(chosen)
        if fetch_urls:
            files += await _fetched(run, chosen, max_bytes)
        if sum(len(file.body) for file in files) > max_bytes:
            raise _too_large(run, max_bytes)
        with_unique_names(files, task)
        try:
            write_all(files, folder, overwrite=overwrite)
        except DownloadedFile as error:
            raise Failure(INTERNAL, str(error), hint=again(run, "--overwrite")) from None
        _report(session, task, files)

    talk(run, work, live=True)


class DownloadedFile(Failure):
    """A file of that name is there."""

    def __init__(self, path: Path) -> None:
        super().__init__(INTERNAL, f"{path} exists; --overwrite replaces it")


def _too_large(run: Invocation, most: int) -> Failure:
    return Failure(
        INTERNAL,
        f"more than {most} bytes; --max-bytes allows more",
        hint=again(run, "--max-bytes", "<n>", without=("--max-bytes",)),
    )


def _artifacts_of(task: "Task", ids: Sequence[str]) -> "list[tuple[int, Artifact]]":
    known = {artifact.artifact_id for artifact in task.artifacts}
    if missing := [id for id in ids if id not in known]:
        raise usage(f"the task has no artifact {missing[0]}")
    return [
        (number, artifact)
        for number, artifact in enumerate(task.artifacts)
        if not ids or artifact.artifact_id in ids
    ]


def gathered(artifacts: "Sequence[tuple[int, Artifact]]") -> list[FileToDownload]:
    """Return the files of artifacts: chunks of one file are joined in order."""
    import msgspec

    files: list[FileToDownload] = []
    for number, artifact in artifacts:
        open_ones: dict[tuple[str, str], FileToDownload] = {}
        for place, part in enumerate(artifact.parts):
            if isinstance(part.raw, bytes):
                kind, body = "raw", part.raw
            elif isinstance(part.text, str):
                kind, body = "text", part.text.encode("utf-8", "surrogatepass")
            elif part.data is not msgspec.UNSET:
                kind, body = "data", msgspec.json.format(msgspec.json.encode(part.data), indent=2)
            else:
                continue
            joins = bool(part.filename) if kind == "raw" else kind == "text"
            file = open_ones.get((kind, part.filename)) if joins else None
            if file is None:
                file = FileToDownload(number, [], part.filename, _type(kind, part))
                open_ones[kind, part.filename] = file
                files.append(file)
            file.parts.append(place)
            file.body += body
    return files


def _type(kind: str, part: "Part") -> str:
    return part.media_type or {"text": "text/plain", "data": "application/json"}.get(
        kind, "application/octet-stream"
    )


async def _fetched(
    run: Invocation, artifacts: "Sequence[tuple[int, Artifact]]", most: int
) -> list[FileToDownload]:
    """Return what addresses lead to: https alone, public addresses alone, no credentials."""
    from dragoman.egress.egress import Egress
    from dragoman.egress.errors import EgressError, EgressFailed

    files: list[FileToDownload] = []
    left = most
    # What the task itself has can be had without what it names.
    unfetched = again(run, off=("--fetch-urls",))
    async with Egress() as egress:
        for number, artifact in artifacts:
            for place, part in enumerate(artifact.parts):
                if not isinstance(part.url, str):
                    continue
                if not part.url.lower().startswith("https://"):
                    raise Failure(INTERNAL, f"{part.url}: only https is fetched", hint=unfetched)
                run.out.progress(f"fetching {part.url}  {most - left:,} bytes so far")
                try:
                    answer = await egress.get(
                        part.url, timeout=_FETCH, max_answer=left, redirects=_REDIRECTS
                    )
                except EgressFailed as error:
                    reason = plain(error.reason)
                    raise Failure(UNREACHABLE, f"{part.url}: {reason}", hint=again(run)) from None
                except EgressError as error:
                    raise Failure(INTERNAL, f"{part.url}: {error.reason}", hint=unfetched) from None
                if answer.status != 200 or answer.is_cut:
                    reason = "is too large" if answer.is_cut else f"answered {answer.status}"
                    code = UNREACHABLE if answer.status in _AWAY else INTERNAL
                    raise Failure(code, f"{part.url} {reason}", hint=unfetched)
                left -= len(answer.body)
                kind = part.media_type or answer.headers.get("content-type", "")
                name = part.filename or part.url.split("?")[0].split("#")[0]
                file = FileToDownload(number, [place], name, kind or "application/octet-stream")
                file.body += answer.body
                files.append(file)
    return files


def with_unique_names(files: Sequence[FileToDownload], task: "Task") -> None:
    """Give every file a name that no other has, also where case does not count."""
    taken: set[str] = set()
    for file in files:
        artifact = task.artifacts[file.artifact]
        suggestions = (file.name, artifact.name, artifact.artifact_id)
        found = (file_name(text, file.media_type) for text in suggestions if text)
        plain = f"artifact-{file.artifact + 1}{ending(file.media_type)}"
        name = first = next(filter(None, found), plain)
        number = 1
        while name.casefold() in taken:
            number += 1
            name = numbered(first, number)
        taken.add(name.casefold())
        file.name = name


def write_all(files: Sequence[FileToDownload], folder: Path, *, overwrite: bool) -> None:
    """Write all files or none."""
    if not files:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        file.path = folder / file.name
        if file.path.is_symlink():
            raise Failure(
                INTERNAL,
                f"{file.path} is a link, and nothing is written through one",
                hint=look_at(file.path),
            )
        if file.path.exists() and not overwrite:
            raise DownloadedFile(file.path)
    staged: list[Path] = []
    try:
        for file in files:
            staged.append(folder / f".dragoman-{secrets.token_hex(8)}.part")
            _write_new(staged[-1], file.body)
            file.digest = hashlib.sha256(file.body).hexdigest()
        for file, temporary in zip(files, staged, strict=True):
            _place(temporary, file.path, overwrite=overwrite)
    finally:
        for temporary in staged:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _write_new(path: Path, body: bytes | bytearray) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    # No execute bit, whatever the agent sent.
    handle = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o644)
    with os.fdopen(handle, "wb") as stream:
        stream.write(body)


def _place(temporary: Path, path: Path, *, overwrite: bool) -> None:
    if overwrite:
        # A link that came meanwhile is replaced itself; what it leads to stays.
        os.replace(temporary, path)
        return
    try:
        # Fails if a file of that name came meanwhile.
        os.link(temporary, path)
    except FileExistsError:
        raise DownloadedFile(path) from None
    except OSError:
        # No links on this file system.
        _write_new(path, temporary.read_bytes())


def _report(session: "Session", task: "Task", files: Sequence[FileToDownload]) -> None:
    out = session.out
    if out.is_json:
        from dragoman.cli.output import bare

        out.json(bare(_marked(task, files)))
        return
    out.field("Task", task.id)
    out.field("Context", task.context_id)
    out.field("State", task.status.name)
    for file in files:
        about = f"{file.media_type}, {len(file.body)} bytes, sha256 {file.digest}"
        out.field("File", f"{file.path} ({about})")
    saved = {(file.artifact, place) for file in files for place in file.parts}
    for number, artifact in enumerate(task.artifacts):
        for place, part in enumerate(artifact.parts):
            if isinstance(part.url, str) and (number, place) not in saved:
                out.field("URL", f"{part.url} ({part.media_type or 'unknown type'}, not fetched)")
    out.field("Files", str(len(files)))


def _marked(task: "Task", files: Sequence[FileToDownload]) -> "Task":
    """Return the task with a note at each part that is on disk."""
    import msgspec

    notes: dict[tuple[int, int], dict[str, Any]] = {}
    for file in files:
        note = {"path": str(file.path), "size": len(file.body), "sha256": file.digest}
        notes |= {(file.artifact, place): {_SAVED: note} for place in file.parts}
    artifacts: list[Artifact] = []
    for number, artifact in enumerate(task.artifacts):
        parts = [
            msgspec.structs.replace(part, metadata=part.metadata | notes[number, place])
            if (number, place) in notes
            else part
            for place, part in enumerate(artifact.parts)
        ]
        artifacts.append(msgspec.structs.replace(artifact, parts=parts))
    return msgspec.structs.replace(task, artifacts=artifacts)
