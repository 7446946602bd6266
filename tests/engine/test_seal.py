"""A page token goes on in its own list, for its own caller, and nowhere else."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.engine.seal import seal, unseal
from dragoman.errors import InvalidParams
from dragoman.model.identity import ContextId, Scope
from dragoman.model.operations import ListTasks
from dragoman.model.task import TaskState

SECRET = b"s" * 32
HERE = Scope("agent", "tenant", "alice")
QUERY = ListTasks(context_id=ContextId("c"), state=TaskState.WORKING, status_since=5)
PLACE = (1_700_000_000_000, 42)


@given(st.tuples(st.integers(0, 2**53), st.integers(0, 2**43)))
def test_a_token_gives_its_place_back(place: tuple[int, int]) -> None:
    assert unseal(seal(place, SECRET, HERE, QUERY), SECRET, HERE, QUERY) == place


def test_a_page_may_have_another_size_and_show_other_fields() -> None:
    other = ListTasks(
        context_id=ContextId("c"),
        state=TaskState.WORKING,
        status_since=5,
        page_size=7,
        history=0,
        include_artifacts=True,
    )
    assert unseal(seal(PLACE, SECRET, HERE, QUERY), SECRET, HERE, other) == PLACE


@pytest.mark.requirement("T-36")
@pytest.mark.parametrize(
    "query",
    [
        ListTasks(state=TaskState.WORKING, status_since=5),
        ListTasks(context_id=ContextId("d"), state=TaskState.WORKING, status_since=5),
        ListTasks(context_id=ContextId("c"), status_since=5),
        ListTasks(context_id=ContextId("c"), state=TaskState.FAILED, status_since=5),
        ListTasks(context_id=ContextId("c"), state=TaskState.WORKING),
        ListTasks(context_id=ContextId("c"), state=TaskState.WORKING, status_since=6),
    ],
)
def test_a_token_is_void_with_other_filters(query: ListTasks) -> None:
    with pytest.raises(InvalidParams) as refused:
        unseal(seal(PLACE, SECRET, HERE, QUERY), SECRET, HERE, query)
    assert refused.value.field == "pageToken"


@pytest.mark.requirement("T-36")
@pytest.mark.parametrize(
    "scope",
    [
        Scope("agent", "tenant", "bob"),
        Scope("agent", "", "alice"),
        Scope("other", "tenant", "alice"),
        Scope("agent", "tenantalice", ""),
    ],
)
def test_a_token_is_void_in_another_scope(scope: Scope) -> None:
    with pytest.raises(InvalidParams):
        unseal(seal(PLACE, SECRET, HERE, QUERY), SECRET, scope, QUERY)


def test_a_token_is_void_under_another_secret() -> None:
    with pytest.raises(InvalidParams):
        unseal(seal(PLACE, SECRET, HERE, QUERY), b"t" * 32, HERE, QUERY)


def test_no_bit_of_a_token_can_be_changed() -> None:
    sealed = base64.urlsafe_b64decode(seal(PLACE, SECRET, HERE, QUERY))
    for index in range(len(sealed) * 8):
        forged = bytearray(sealed)
        forged[index // 8] ^= 1 << index % 8
        with pytest.raises(InvalidParams):
            unseal(base64.urlsafe_b64encode(forged).decode(), SECRET, HERE, QUERY)


@given(st.text() | st.binary().map(lambda raw: base64.urlsafe_b64encode(raw).decode()))
def test_what_we_did_not_make_is_refused(token: str) -> None:
    with pytest.raises(InvalidParams):
        unseal(token, SECRET, HERE, QUERY)


def test_a_token_shows_no_secret_and_stays_short() -> None:
    token = seal((2**53, 2**43), SECRET, HERE, QUERY)
    assert len(token) <= 256
    assert b"alice" not in base64.urlsafe_b64decode(token)
    # How many tasks there are is nobody's business either.
    assert str(2**43).encode() not in base64.urlsafe_b64decode(token)
