"""Request lines and lines of chunks that the parser reads and does not show: in pieces, behind
other requests, and those that are good."""

from dragoman.http.raw_request import MAX_DIGITS, MAX_LINE_BYTES, ChunkLines
from tests.http.test_good_http import Echo
from tests.http.wire import HOST, get, guarding, is_problem, post

CHUNKED = b"POST /a HTTP/1.1\r\nHost: " + HOST + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
TWO_SPACES = get(b"/a").replace(b" /a", b"  /a")


async def test_two_spaces_are_refused_wherever_the_line_is_cut() -> None:
    async with guarding(Echo()) as place:
        for cut in range(1, TWO_SPACES.index(b"\r\n\r\n")):
            async with place.peer() as peer:
                await peer.send(TWO_SPACES[:cut])
                await peer.send(TWO_SPACES[cut:])
                answer = await peer.answer()
                assert answer.status == 400 and is_problem(answer), cut
                assert await peer.rest() == b""


async def test_two_spaces_behind_a_good_request_are_refused_after_its_answer() -> None:
    good = (get(b"/a"), post(b"body", path=b"/a"), CHUNKED + b"4\r\nbody\r\n0\r\n\r\n")
    async with guarding(Echo()) as place:
        for before in good:
            for cut in (0, len(before), len(before) + 4, len(before) + 9):
                async with place.peer() as peer:
                    whole = before + TWO_SPACES
                    await peer.send(whole[:cut])
                    await peer.send(whole[cut:])
                    assert (await peer.answer()).status == 200
                    answer = await peer.answer()
                    assert answer.status == 400 and is_problem(answer), (before, cut)
                    assert await peer.rest() == b""


async def test_the_same_good_request_is_answered_however_it_is_cut_or_repeated() -> None:
    one = post(b'{"a":  "two  spaces"}', b"X-A:   three  ", path=b"/a")
    async with guarding(Echo()) as place:
        for cut in range(0, len(one) * 2, 7):
            async with place.peer() as peer:
                twice = b"\r\n" + one + one
                await peer.send(twice[:cut])
                await peer.send(twice[cut:])
                assert [(await peer.answer()).status for _ in range(2)] == [200, 200], cut


async def test_chunks_with_few_zeros_and_short_extensions_are_read_however_they_are_cut() -> None:
    chunks = b'0003\r\nabc\r\n%b4;a="b"\r\ndefg\r\n00\r\nX: y\r\n\r\n' % (b"0" * (MAX_DIGITS - 1))
    whole = CHUNKED + chunks + get(b"/b")
    async with guarding(Echo()) as place:
        for cut in range(len(whole)):
            async with place.peer() as peer:
                await peer.send(whole[:cut])
                await peer.send(whole[cut:])
                assert (await peer.answer()).body == b"/a abcdefg", cut
                assert (await peer.answer()).body == b"/b ", cut


async def test_zeros_before_a_size_are_refused_however_they_are_cut() -> None:
    whole = CHUNKED + b"3\r\nabc\r\n" + b"0" * MAX_DIGITS + b"3\r\nabc\r\n0\r\n\r\n"
    async with guarding(Echo()) as place:
        for cut in range(len(CHUNKED) - 5, len(whole), 3):
            async with place.peer() as peer:
                await peer.send(whole[:cut])
                await peer.send(whole[cut:])
                answer = await peer.answer()
                assert answer.status == 400 and is_problem(answer), cut


def test_the_lines_of_chunks_are_followed_from_any_piece_to_the_next() -> None:
    good = b"5\r\nhello\r\n3;x=y\r\nabc\r\n0\r\nX: y\r\n\r\n"
    long_line = b"3;" + b"a" * MAX_LINE_BYTES + b"\r\nabc\r\n"
    for text, is_good in ((good, True), (b"0" * 17 + good, False), (long_line, False)):
        for size in (1, 2, 3, 5, 100, 5_000):
            lines = ChunkLines()
            pieces = [text[place : place + size] for place in range(0, len(text), size)]
            assert all([lines.take(piece) for piece in pieces]) is is_good, (text[:20], size)
