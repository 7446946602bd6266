"""Principals: an owner in a tenant, and a text that no other one has."""

from hypothesis import given
from hypothesis import strategies as st

from dragoman.model.identity import LOCAL, Caller, Principal, Scope

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
    assert Caller().principal == LOCAL and not LOCAL.text


def _caller(owner: str, tenant: str | None) -> Caller:
    return Caller(owner, bool(owner), tenant=tenant)


CALLERS = st.builds(_caller, TEXTS, st.none() | TEXTS)


@given(CALLERS, CALLERS, TEXTS)
def test_two_principals_never_share_a_scope(one: Caller, other: Caller, named: str) -> None:
    """Whichever tenant those name who may name any."""
    scopes = [
        Scope.of("a", named if each.tenant is None else each.tenant, each) for each in (one, other)
    ]
    if one.owner and other.owner and one.principal != other.principal:
        assert scopes[0] != scopes[1]


@given(CALLERS, TEXTS)
def test_a_scope_leads_back_to_whose_it_is(one: Caller, named: str) -> None:
    scope = Scope.of("a", one.tenant or (named if one.tenant is None else ""), one)
    assert Scope.of("a", scope.tenant, scope.caller()) == scope
    if one.owner:
        assert scope.principal == scope.caller().principal == one.principal
        own, named_ = one.principal.owners()
        assert scope.owner in ({own} if scope.tenant == one.principal.tenant else {named_})
