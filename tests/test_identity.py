"""Principals: an owner in a tenant, and a text that no other one has."""

from hypothesis import given
from hypothesis import strategies as st

from dragoman.model.identity import LOCAL, Caller, Principal

TEXTS = st.text(max_size=12) | st.sampled_from(["@", "@/", "a/b", "%2F", "@acme/ada", "key:ada"])
PRINCIPALS = st.builds(Principal, TEXTS, TEXTS)


@given(PRINCIPALS)
def test_a_text_stands_for_one_principal(one: Principal) -> None:
    assert Principal.read(one.text) == one


@given(PRINCIPALS, PRINCIPALS)
def test_two_principals_never_share_a_text(one: Principal, other: Principal) -> None:
    assert (one.text == other.text) == (one == other)


def test_a_principal_has_the_tenant_of_its_credential() -> None:
    assert Caller("ada", True, tenant="acme").principal == Principal("acme", "ada")
    assert Caller("ada", True).principal.text == "ada"
    assert Caller("ada", True, tenant="acme").principal != Caller("ada", True).principal
    assert LOCAL == Caller().principal and not LOCAL.text
