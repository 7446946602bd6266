"""Names that agents suggest, and files that are written whole, once, and where they belong."""

import hashlib
import os
from pathlib import Path

import pytest

from dragoman.cli.calling.download import (
    FileToDownload,
    _fetched,
    gathered,
    with_unique_names,
    write_all,
)
from dragoman.cli.calling.file_names import file_name, numbered
from dragoman.cli.failures import Failure
from dragoman.cli.invocation import Invocation
from dragoman.egress.answers import EgressResponse
from dragoman.egress.egress import Egress
from dragoman.egress.errors import EgressError, EgressFailed, EgressRefused
from dragoman.model.artifact import Artifact
from dragoman.model.identity import ContextId, TaskId
from dragoman.model.message import Part
from dragoman.model.task import Task, TaskState, TaskStatus


@pytest.mark.parametrize(
    ("suggested", "media_type", "name"),
    [
        ("report.pdf", "application/pdf", "report.pdf"),
        ("../../etc/passwd", "text/plain", "passwd.txt"),
        ("C:\\Users\\x\\evil.exe", "", "evil.exe"),
        ("/", "text/plain", ""),
        ("..", "text/plain", ""),
        (".bashrc", "text/plain", "bashrc.txt"),
        ("trailing. . ", "text/plain", "trailing.txt"),
        ('a:b*c?d"e<f>g|h.txt', "", "abcdefgh.txt"),
        ("a\u202egpj.exe", "", "agpj.exe"),
        ("line\nbreak.txt", "", "linebreak.txt"),
        ("CON", "text/plain", "_CON.txt"),
        ("com1.tar.gz", "", "_com1.tar.gz"),
        ("e\u0301.txt", "", "\u00e9.txt"),
        ("data", "application/json", "data.json"),
        ("data", "application/json; charset=utf-8", "data.json"),
        ("unknown", "application/x-none", "unknown"),
    ],
)
def test_a_name_is_one_safe_component(suggested: str, media_type: str, name: str) -> None:
    assert file_name(suggested, media_type) == name


@pytest.mark.parametrize("suggested", ["x" * 500, "ä" * 300 + ".tar", "x" * 500 + ".pdf"])
def test_a_long_name_is_cut_at_200_bytes_and_keeps_its_extension(suggested: str) -> None:
    name = file_name(suggested, "application/pdf")
    assert len(name.encode()) <= 200 and name.endswith((".pdf", ".tar"))
    assert len(numbered(name, 12345).encode()) <= 200


def task(*artifacts: Artifact) -> Task:
    return Task(TaskId("t"), ContextId("c"), TaskStatus(TaskState.COMPLETED), list(artifacts))


def files_of(subject: Task) -> list[FileToDownload]:
    files = gathered(list(enumerate(subject.artifacts)))
    with_unique_names(files, subject)
    return files


def test_chunks_are_joined_and_names_come_from_the_nearest_place() -> None:
    subject = task(
        Artifact(
            "a-1",
            [
                Part(text="one "),
                Part(raw=b"\x00\x01", filename="x.bin"),
                Part(text="two"),
                Part(raw=b"\x02", filename="x.bin"),
                Part(data={"k": 1}),
                Part(url="https://example.com/y"),
            ],
            "story",
        ),
        Artifact("a-2", [Part(raw=b"other", filename="X.BIN"), Part(text="")]),
        Artifact("..", [Part(data=[])]),
    )
    found = [(file.name, bytes(file.body), file.parts) for file in files_of(subject)]
    assert found == [
        ("story.txt", b"one two", [0, 2]),
        ("x.bin", b"\x00\x01\x02", [1, 3]),
        ("story.json", b'{\n  "k": 1\n}', [4]),
        ("X-2.BIN", b"other", [0]),
        ("a-2.txt", b"", [1]),
        ("artifact-3.json", b"[]", [0]),
    ]


def one(folder: Path, body: bytes = b"body", *, overwrite: bool = False) -> FileToDownload:
    file = FileToDownload(0, [0], "f.txt", "text/plain", bytearray(body))
    write_all([file], folder, overwrite=overwrite)
    return file


def test_a_file_is_written_without_an_execute_bit(tmp_path: Path) -> None:
    file = one(tmp_path / "new" / "folder")
    assert file.path.read_bytes() == b"body" and not file.path.stat().st_mode & 0o111
    assert file.digest == hashlib.sha256(b"body").hexdigest()
    assert os.listdir(file.path.parent) == ["f.txt"]


def test_an_existing_file_is_replaced_only_when_asked(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("mine")
    with pytest.raises(Failure, match="exists"):
        one(tmp_path)
    assert (tmp_path / "f.txt").read_text() == "mine"
    one(tmp_path, overwrite=True)
    assert (tmp_path / "f.txt").read_text() == "body"
    assert os.listdir(tmp_path) == ["f.txt"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_nothing_is_written_through_a_link(tmp_path: Path, overwrite: bool) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "f.txt").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Failure, match="link"):
        one(folder, overwrite=overwrite)
    assert not (tmp_path / "elsewhere").exists() and os.listdir(folder) == ["f.txt"]


def test_nothing_half_written_stays(tmp_path: Path) -> None:
    (tmp_path / "b.txt").mkdir()
    files = [
        FileToDownload(0, [0], name, "text/plain", bytearray(b"x")) for name in ("a.txt", "b.txt")
    ]
    with pytest.raises((Failure, OSError)):
        write_all(files, tmp_path, overwrite=False)
    assert os.listdir(tmp_path) == ["b.txt"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EgressFailed("the name has no address", is_sent=False), "A2ACLI_ERR_UNREACHABLE"),
        (EgressRefused("10.0.0.1 is a private address"), "A2ACLI_ERR_INTERNAL"),
        (503, "A2ACLI_ERR_UNREACHABLE"),
        (404, "A2ACLI_ERR_INTERNAL"),
    ],
)
async def test_what_cannot_be_fetched_is_out_of_reach_unless_we_do_not_want_to(
    monkeypatch: pytest.MonkeyPatch, error: EgressError | int, code: str
) -> None:
    async def get(self: Egress, url: str, **more: object) -> EgressResponse:
        if isinstance(error, int):
            return EgressResponse(error, {}, b"")
        raise error

    monkeypatch.setattr(Egress, "get", get)
    subject = Artifact("a-1", [Part(url="https://nowhere.example/x")])
    with pytest.raises(Failure, match=r"nowhere\.example") as caught:
        await _fetched(Invocation([], {}), [(0, subject)], 100)
    assert caught.value.code == code
