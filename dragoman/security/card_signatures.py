"""Signatures of agent cards: detached JWS over canonical JSON, against keys the user trusts.

What is signed is the card of 1.0: members it does not know are not covered, so code that acts on
a verdict reads `SignatureVerdict.covered` rather than the card as it came. Some signers
canonicalize in ways of their own; three of those are tried after the right one, and the verdict
says which matched.
Nothing is fetched here: a `jku` is only ever named.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import msgspec

from dragoman.egress.targets import NotCanonical, read_target
from dragoman.errors import CardInvalid
from dragoman.security import base64url
from dragoman.security.card_keys import (
    ALGORITHMS,
    Key,
    KeySet,
    algorithm_of,
    check_extra,
    fits,
    private_key,
)
from dragoman.security.card_members import known_members

if TYPE_CHECKING:
    pass

# More than any card has: each may cost a verification in each of the forms.
MOST_SIGNATURES = 16
LARGEST_HEADER = 8 * 1024
DEEPEST = 100
# Whole numbers beyond this are no longer told apart by who reads them as doubles.
_LARGEST_WHOLE = 2**53 - 1

DOES_NOT_FIT = "the signature does not fit the card"

# What the library of 0.3 leaves out of a card before it signs it.
_DEFAULTS_0_3 = {"protocolVersion": "0.3.0", "preferredTransport": "JSONRPC"}

Object = dict[str, Any]
Form = Literal["", "strict", "no-empties", "python", "raw"]


class SignatureVerdict(msgspec.Struct, frozen=True):
    """What is to be thought of a card's signatures: exactly one of three things."""

    kind: Literal["verified", "unverifiable", "absent"]
    # Why it is unverifiable, which a check that failed makes it as well.
    reason: str = ""
    # The payload that matched: as the specification has it, without anything empty, the same as
    # Python writes it, or the card as it came.
    form: Form = ""
    kid: str = ""
    # What the signature vouches for, without the rest of the card.
    covered: dict[str, Any] = {}


def canonical(card: Mapping[str, Any]) -> bytes:
    """Return the bytes that are signed for a card in the shape of 1.0; raises `CardInvalid`."""
    check_extra()
    return _jcs(known_members(card))


def sign(
    card: Mapping[str, Any],
    key: "Key | bytes | str | Mapping[str, Any]",
    kid: str,
    *,
    jku: str = "",
    header: Mapping[str, Any] | None = None,
) -> Object:
    """Return the card with one more signature; raises `ConfigError` for a key of no use.

    `key` is a private key as PEM or as JWK. To be verifiable by everyone, a card should have no
    required member that is empty: others drop those before they look.
    """
    check_extra()
    from joserfc.jws import JWSRegistry

    private = private_key(key)
    protected: Object = {"alg": algorithm_of(private), "kid": kid, "typ": "JOSE"}
    if jku:
        protected["jku"] = jku
    head = base64url.encode(_jcs(protected))
    model = JWSRegistry.algorithms[protected["alg"]]
    signature = model.sign(f"{head}.{base64url.encode(canonical(card))}".encode(), private)
    entry: Object = {"protected": head, "signature": base64url.encode(signature)}
    if header:
        entry["header"] = dict(header)
    return {**card, "signatures": [*(card.get("signatures") or []), entry]}


def verify(card: Mapping[str, Any], keys: KeySet, *, now: float | None = None) -> SignatureVerdict:
    """Return the verdict on a card; one good signature is enough."""
    signatures = card.get("signatures")
    if signatures is None or signatures == []:
        return SignatureVerdict("absent")
    if not isinstance(signatures, list):
        return SignatureVerdict("unverifiable", "the signatures are no list")
    entries = cast("list[Any]", signatures)
    if len(entries) > MOST_SIGNATURES:
        return SignatureVerdict("unverifiable", f"there are more than {MOST_SIGNATURES} signatures")
    moment = time.time() if now is None else now
    payloads = _Payloads(card)
    reasons: dict[str, None] = {}
    for entry in entries:
        verdict = _verify_one(entry, payloads, keys, moment)
        if verdict.kind == "verified":
            return verdict
        reasons[verdict.reason] = None
    return SignatureVerdict("unverifiable", "; ".join(reasons))


class Checked(NamedTuple):
    """What a signature claims about itself, unverified, and the verdict on it alone."""

    verdict: SignatureVerdict
    kid: str = ""
    algorithm: str = ""
    key_url: str = ""


def verify_each(card: Mapping[str, Any], keys: KeySet) -> list[Checked]:
    """Return a verdict for each signature of a card, in their order; as many as are looked at."""
    signatures = card.get("signatures")
    if not isinstance(signatures, list):
        return []
    now = time.time()
    payloads = _Payloads(card)
    found: list[Checked] = []
    for entry in cast("list[Any]", signatures)[:MOST_SIGNATURES]:
        verdict = _verify_one(entry, payloads, keys, now)
        try:
            protected = _signature(entry)[0]
        except _Refused:
            found.append(Checked(verdict))
            continue
        facts = (protected.get(name) for name in ("kid", "alg", "jku"))
        found.append(Checked(verdict, *(text if isinstance(text, str) else "" for text in facts)))
    return found


def key_urls(card: Mapping[str, Any], origins: Sequence[str]) -> list[str]:
    """Return where a card's signatures say their keys are, as far as that is at these origins."""
    allowed = {_origin(origin) for origin in origins} - {""}
    signatures = card.get("signatures")
    found: dict[str, None] = {}
    if isinstance(signatures, list):
        for entry in cast("list[Any]", signatures)[:MOST_SIGNATURES]:
            try:
                url = _signature(entry)[0].get("jku")
            except _Refused:
                continue
            if isinstance(url, str) and url.startswith("https://") and _origin(url) in allowed:
                found[url] = None
    return list(found)


class _Refused(Exception):
    """A signature cannot be checked; says why."""


class _Payloads:
    """The forms of one card that may have been signed, made when they are first looked at."""

    def __init__(self, card: Mapping[str, Any]) -> None:
        self._card = {name: item for name, item in card.items() if name != "signatures"}
        # A card of 0.x has no canonical form of its own, and all of it counts.
        strict = "supportedInterfaces" in card or "supported_interfaces" in card
        self._makers: dict[Form, Callable[[], tuple[Object, bytes]]] = {
            "strict": self._strict,
            "no-empties": self._without_empties,
            "python": self._python,
            "raw": self._raw,
        }
        self._order: tuple[Form, ...] = ("strict", "no-empties", "python", "raw")
        if not strict:
            self._order = ("raw", "no-empties", "python")
        self._is_newer = strict
        self._forms: dict[Form, tuple[Object, bytes] | None] = {}

    def __iter__(self) -> Iterator[tuple[Form, Object, bytes]]:
        for form in self._order:
            if form not in self._forms:
                try:
                    covered, payload = self._makers[form]()
                    self._forms[form] = covered, base64url.encode(payload).encode()
                except CardInvalid:
                    self._forms[form] = None
            if (made := self._forms[form]) is not None:
                yield form, *made

    def _strict(self) -> tuple[Object, bytes]:
        covered = known_members(self._card)
        return covered, _jcs(covered)

    def _without_empties(self) -> tuple[Object, bytes]:
        covered = cast(Object, _without_empty(self._whole()) or {})
        return covered, _jcs(covered)

    def _python(self) -> tuple[Object, bytes]:
        covered = cast(Object, _without_empty(self._whole()) or {})
        if self._is_newer:
            value = _doubles(covered)
        else:
            value = {k: item for k, item in covered.items() if _DEFAULTS_0_3.get(k) != item}
        try:
            text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
        except ValueError:
            raise CardInvalid("there is no such number in JSON") from None
        return covered, text.encode()

    def _raw(self) -> tuple[Object, bytes]:
        return self._card, _jcs(self._card)

    def _whole(self) -> Object:
        return known_members(self._card) if self._is_newer else self._card


def _verify_one(entry: Any, payloads: _Payloads, keys: KeySet, now: float) -> SignatureVerdict:
    try:
        protected, head, signature = _signature(entry)
        algorithm, kid = protected.get("alg"), protected.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise _Refused("the algorithm is not one we accept")
        # None is understood, so none can be fulfilled; b64 means something only when critical.
        if "crit" in protected or "b64" in protected:
            raise _Refused("the signature has an extension that is critical")
        if not isinstance(kid, str) or not kid:
            raise _Refused("the signature names no key")
        fitting = [key for key in keys.candidates(kid, now) if fits(key, algorithm)]
        if not fitting:
            raise _Refused("the key is not among those trusted")
    except _Refused as refused:
        return SignatureVerdict("unverifiable", str(refused))
    from joserfc.jws import JWSRegistry

    model = JWSRegistry.algorithms[algorithm]
    for form, covered, payload in payloads:
        for key in fitting:
            if model.verify(head + b"." + payload, signature, key):
                return SignatureVerdict("verified", form=form, kid=kid, covered=covered)
    return SignatureVerdict("unverifiable", DOES_NOT_FIT)


def _signature(entry: Any) -> tuple[Object, bytes, bytes]:
    """Return the protected header, its own text, and the signature; raises `_Refused`."""
    if not isinstance(entry, dict):
        raise _Refused("a signature is no object")
    fields = cast(Object, entry)
    texts = fields.get("protected"), fields.get("signature")
    if not all(isinstance(text, str) and len(text) <= LARGEST_HEADER for text in texts):
        raise _Refused("a signature has no header, or is no text")
    head, signature = cast("tuple[str, str]", texts)
    try:
        protected = json.loads(base64url.decode(head), object_pairs_hook=_once_each)
        found = base64url.decode(signature)
    except (ValueError, RecursionError):
        raise _Refused("a signature cannot be decoded") from None
    if not isinstance(protected, dict):
        raise _Refused("the header of a signature is no object")
    return cast(Object, protected), head.encode("ascii"), found


def _once_each(pairs: list[tuple[str, Any]]) -> Object:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a member is there twice")
    return dict(pairs)


def _origin(url: str) -> str:
    try:
        return read_target(url).origin
    except NotCanonical:
        return ""


def _jcs(value: Any) -> bytes:
    import rfc8785

    try:
        # Large numbers are doubles, as JSON reads them everywhere else.
        return rfc8785.dumps(_mapped(value, _whole_number, 0))
    except (rfc8785.CanonicalizationError, UnicodeError, OverflowError, RecursionError):
        raise CardInvalid("The card has no canonical form") from None


def _whole_number(number: float) -> float:
    # A boolean is an integer to Python.
    if type(number) is int and not -_LARGEST_WHOLE <= number <= _LARGEST_WHOLE:
        return float(number)
    return number


def _doubles(value: Any) -> Any:
    """Return a value as protobuf has it in a Struct, where every number is a double."""
    try:
        return _mapped(value, lambda number: float(number) if type(number) is int else number, 0)
    except OverflowError:
        raise CardInvalid("The card has no canonical form") from None


def _mapped(value: Any, number: Callable[[float], float], depth: int) -> Any:
    if depth > DEEPEST:
        raise CardInvalid("The card is nested too deep")
    if isinstance(value, dict):
        fields = cast(Object, value)
        return {name: _mapped(item, number, depth + 1) for name, item in fields.items()}
    if isinstance(value, list):
        return [_mapped(item, number, depth + 1) for item in cast("list[Any]", value)]
    return number(value) if isinstance(value, int | float) else value


def _without_empty(value: Any, depth: int = 0) -> Any:
    """Return a value without anything empty in it, at any depth; None for nothing left."""
    if depth > DEEPEST:
        raise CardInvalid("The card is nested too deep")
    if isinstance(value, dict):
        fields = {
            name: inner
            for name, item in cast(Object, value).items()
            if (inner := _without_empty(item, depth + 1)) is not None
        }
        return fields or None
    if isinstance(value, list):
        items = [
            inner
            for item in cast("list[Any]", value)
            if (inner := _without_empty(item, depth + 1)) is not None
        ]
        return items or None
    return None if value == "" else value
