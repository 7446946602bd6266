"""Which key a credential may make: none that is stronger than itself.

The key acts for the same principal, in the same tenant, for some of the same scopes, and ends no
later. It ends with the credential too: what that was is recorded, and looked at for every request.
"""

from collections.abc import Collection

import msgspec

from dragoman.errors import PermissionDenied
from dragoman.model.identity import Caller, Principal
from dragoman.security.authentication import Pass, PresentedCredential
from dragoman.security.keys.key_scopes import EVERYTHING, grantable

# Keys of agents that may be made one by the other.
MOST_GENERATIONS = 8


class KeyTerms(msgspec.Struct, frozen=True):
    """What a key will be."""

    principal: Principal
    # As its maker's credential has it; None: that names no tenant.
    tenant: str | None
    scopes: frozenset[str]
    # Seconds since the epoch; `NEVER`: it ends with its parent alone.
    until: float
    parent: PresentedCredential
    generation: int = 1


def terms_of(maker: Pass | None, scopes: Collection[str], *, until: float, now: float) -> KeyTerms:
    """Return what a requested key will be; raises `PermissionDenied` for more than its
    maker has. Without scopes it is for all that its maker may give."""
    if maker is None or not _is_proven(maker.caller):
        raise PermissionDenied(
            "No key is made for a caller that did not prove who it is: start the gateway with "
            "--auth, and come back with a credential"
        )
    parent, caller = maker.credential, maker.caller
    if parent is None:
        raise PermissionDenied(
            "No key can be made by this credential: whether it still holds could not be told later"
        )
    if parent.until <= now:
        raise PermissionDenied("No key can be made by a credential that ends now")
    generation = len(parent.ancestors) + 1
    if generation > MOST_GENERATIONS:
        raise PermissionDenied(f"{MOST_GENERATIONS} keys were made one by the other; no more are")
    return KeyTerms(
        caller.principal,
        caller.tenant,
        _granted_scopes(maker, scopes),
        _end(maker, until),
        parent,
        generation,
    )


def _is_proven(caller: Caller) -> bool:
    """Tell whether a caller proved who it is: a key for the local user would be one for everybody
    to whom no name was given."""
    return caller.authenticated and bool(caller.owner)


def _end(maker: Pass, wanted: float) -> float:
    ends = maker.credential.until if maker.credential is not None else 0.0
    return min(wanted, ends, maker.until)


def _granted_scopes(maker: Pass, wanted: Collection[str]) -> frozenset[str]:
    own = grantable(maker.caller)
    if not wanted:
        return frozenset({EVERYTHING}) if EVERYTHING in own else own
    if missing := sorted({*wanted} - own):
        raise PermissionDenied(
            "A key is for no more than the credential that makes it", scope=" ".join(missing)
        )
    return frozenset(wanted)
