"""Which version a peer speaks: header, query, method name and the strictness asked for."""

import pytest

from dragoman.dialects import negotiate
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.operations import ROWS
from dragoman.dialects.v0_2 import V0_2
from dragoman.dialects.v0_3 import V0_3, V0_3_OBJECTS
from dragoman.dialects.v0_3_proto import V0_3_PROTO, V0_3_PROTO_TEXT
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import VersionNotSupported

V1_METHODS = [row.v1 for row in ROWS]
V0_METHODS = [name for row in ROWS for name in row.v0]


def jsonrpc(
    method: str, header: str | None = None, query: str | None = None, *, infer: bool = True
) -> str:
    return negotiate.for_jsonrpc(method, header, query, infer=infer).version


@pytest.mark.parametrize("method", V1_METHODS)
def test_a_method_of_1_0_without_a_version_is_1_0_unless_we_are_strict(method: str) -> None:
    assert jsonrpc(method) == "1.0"
    with pytest.raises(VersionNotSupported) as refused:
        jsonrpc(method, infer=False)
    assert refused.value.facts == {"supportedVersions": "1.0,0.3,0.2"}


@pytest.mark.parametrize("method", V0_METHODS)
@pytest.mark.parametrize("infer", [True, False])
def test_a_method_with_a_slash_and_no_version_is_0_3(method: str, infer: bool) -> None:
    assert jsonrpc(method, infer=infer) == "0.3"
    assert jsonrpc(method, "", "  ", infer=infer) == "0.3"


@pytest.mark.parametrize(
    ("version", "served"),
    [("0.3", "0.3"), ("0.3.0", "0.3"), ("0.2", "0.2"), ("0.2.6", "0.2"), (" 0.3 ", "0.3")],
)
@pytest.mark.parametrize("infer", [True, False])
def test_an_older_version_serves_the_older_methods(version: str, served: str, infer: bool) -> None:
    assert jsonrpc("message/send", version, infer=infer) == served
    with pytest.raises(VersionNotSupported):
        jsonrpc("SendMessage", version, infer=infer)


@pytest.mark.parametrize("version", ["1.0", "1.0.1", "1.2", "1.10"])
@pytest.mark.parametrize("infer", [True, False])
def test_any_1_x_serves_the_methods_of_1_0(version: str, infer: bool) -> None:
    assert jsonrpc("SendMessage", version, infer=infer) == "1.0"
    assert negotiate.for_rest(version, None, infer=infer).version == "1.0"
    with pytest.raises(VersionNotSupported):
        jsonrpc("message/send", version, infer=infer)


@pytest.mark.parametrize(
    "version", ["2", "2.0", "1", "INVALID", "0.1", "0.4", "1.0beta", "1.0, 0.3", "١.٠", "1.0.0.0"]
)
@pytest.mark.parametrize("method", ["SendMessage", "message/send"])
def test_a_version_nobody_offers_is_refused(version: str, method: str) -> None:
    with pytest.raises(VersionNotSupported):
        jsonrpc(method, version)
    with pytest.raises(VersionNotSupported):
        jsonrpc(method, None, version)
    with pytest.raises(VersionNotSupported):
        negotiate.for_rest(version, None, infer=True)


def test_the_header_wins_over_the_query() -> None:
    assert jsonrpc("message/send", "0.2", "0.3") == "0.2"
    assert jsonrpc("message/send", "", "0.2") == "0.2"
    with pytest.raises(VersionNotSupported):
        jsonrpc("message/send", "9.9", "0.3")


@pytest.mark.requirement("V-8")
@pytest.mark.parametrize(
    ("method", "header", "served"),
    [
        ("tasks/list", None, "0.3"),
        ("tasks/list", "0.2", "0.2"),
        ("tasks/list", "1.0", "1.0"),
        ("NoSuchMethod", "0.3", "0.3"),
        ("NoSuchMethod", None, "1.0"),
        ("whatever", None, "1.0"),
    ],
)
def test_a_method_nobody_knows_is_left_to_the_dialect(
    method: str, header: str | None, served: str
) -> None:
    assert jsonrpc(method, header) == served


def test_a_strict_server_reads_an_unknown_method_without_a_version_as_0_3() -> None:
    assert jsonrpc("whatever", infer=False) == "0.3"


def test_rest_speaks_1_0_and_says_so() -> None:
    assert negotiate.for_rest(None, None, infer=True).version == "1.0"
    for header, infer in ((None, False), ("0.3", True), ("0.2", True)):
        with pytest.raises(VersionNotSupported) as refused:
            negotiate.for_rest(header, None, infer=infer)
        assert refused.value.facts == {"supportedVersions": "1.0"}


@pytest.mark.parametrize(
    ("header", "query", "method", "version"),
    [
        ("0.3", None, "SendMessage", "0.3"),
        ("0.1", None, "", "0.3"),
        (None, "0.2", "", "0.3"),
        ("1.0", None, "message/send", "1.0"),
        ("2.0", None, "message/send", "1.0"),
        ("INVALID", None, "message/send", "1.0"),
        (None, None, "message/send", "0.3"),
        (None, None, "SendMessage", "1.0"),
        (None, None, "whatever", "1.0"),
        (None, None, "", "1.0"),
    ],
)
@pytest.mark.requirement("X-6")
def test_an_error_before_any_dialect_is_written_for_whoever_asked(
    header: str | None, query: str | None, method: str, version: str
) -> None:
    assert negotiate.error_version(header, query, method) == version


@pytest.mark.requirement("DC-1")
@pytest.mark.parametrize(
    ("header", "query", "shape"),
    [
        (None, None, "hybrid"),
        ("", "", "hybrid"),
        ("1.0", None, "1.0"),
        ("1.1", None, "1.0"),
        (None, "1.0", "1.0"),
        ("0.3", "1.0", "0.3"),
        ("0.2.6", None, "0.3"),
        ("7.0", None, "1.0"),
        ("0.9", None, "0.3"),
        ("INVALID", None, "1.0"),
    ],
)
def test_the_card_has_the_shape_the_caller_can_read(
    header: str | None, query: str | None, shape: str
) -> None:
    assert negotiate.card_shape(header, query) == shape


def test_extensions_are_read_from_both_headers_as_one_set() -> None:
    headers = [
        (b"A2A-Extensions", b"https://a.example/1 , ,https://b.example/2"),
        (b"x-a2a-extensions", b"https://b.example/2,https://c.example/3"),
        (b"a2a-extensions", b""),
        (b"content-type", b"application/json"),
    ]
    assert negotiate.extensions(headers) == {
        "https://a.example/1",
        "https://b.example/2",
        "https://c.example/3",
    }
    assert negotiate.extensions([]) == frozenset()


def rest_of(agent: str, *files: str) -> str:
    content = [{"file": {"fileWithBytes": one, "mimeType": "text/plain"}} for one in files]
    body = {"message": {"messageId": "m", "role": "ROLE_USER", "content": content}}
    found = negotiate.for_rest_0_3(None, None, agent, body, infer=True)
    return "text" if found is V0_3_PROTO_TEXT else "bytes" if found is V0_3_PROTO else "other"


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ([], "text"),
        ([""], "text"),
        # The base64 of base64, which is what the official library sends.
        (["YUdWc2JHOD0="], "text"),
        # The base64 of a text, and of bytes that are none.
        (["aGVsbG8="], "bytes"),
        (["AAH/"], "bytes"),
        (["YUdWc2JHOD0=", "AAH/"], "bytes"),
    ],
)
def test_a_caller_in_python_that_sends_files_as_they_are_gets_them_so(
    files: list[str], wanted: str
) -> None:
    assert rest_of("python-httpx/0.28.1", *files) == wanted
    assert rest_of("curl/8", *files) == "bytes"


@pytest.mark.parametrize(
    ("dialect", "agent", "first", "wanted"),
    [
        (V0_3, "python-httpx/0.28.1", "id", V0_3_OBJECTS),
        (V0_3, "python-httpx/0.28.1", "method", V0_3_OBJECTS),
        (V0_3, "python-httpx/0.28.1", "jsonrpc", V0_3),
        (V0_3, "curl/8", "id", V0_3),
        (V0_2, "python-httpx/0.28.1", "id", V0_2),
        (V1_0, "python-httpx/0.28.1", "id", V1_0),
    ],
)
def test_the_official_python_library_is_known_by_its_envelopes(
    dialect: Dialect, agent: str, first: str, wanted: Dialect
) -> None:
    assert negotiate.for_library(dialect, agent, first) is wanted
