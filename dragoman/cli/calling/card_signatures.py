"""`dragoman card sign` and `dragoman card verify`: signatures on cards, made and judged.

Signing is local: a file, a private key, and the signed card comes out. Verifying goes by the
keys that the user names; where a signature says that its key is at some address, that address is
asked only if the user allows its origin.
"""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from dragoman.cli.calling.card import check, verdict_text
from dragoman.cli.calling.saving import save_whole
from dragoman.cli.failures import CARD_INVALID, CARD_NOT_FOUND, Failure, code_of, usage
from dragoman.cli.grammar import command
from dragoman.cli.hints import again, look_at
from dragoman.cli.hints import command as next_command
from dragoman.cli.invocation import Invocation
from dragoman.cli.option import option
from dragoman.cli.redaction import NextCommand

if TYPE_CHECKING:
    # Heavy: loaded when a command runs.
    from dragoman.egress.egress import Egress
    from dragoman.security.card_keys import KeySet
    from dragoman.security.card_signatures import Checked, SignatureVerdict

Object = dict[str, Any]


@command("sign")
@click.argument("file", metavar="FILE")
@option("--key", required=True, metavar="<path>", help="The private key: PEM, or a JWK.")
@option("--kid", default="", metavar="<id>", help="Its name (that of the JWK, or its thumbprint).")
@option("--jku", default="", metavar="<url>", help="Where callers find its public half (https).")
@option("--save", default="", metavar="<path>", help="The file to write (stdout).")
@option("--force", switch=True, help="Replace the file of --save if it exists.")
def sign(run: Invocation, file: str, key: str, kid: str, jku: str, save: str, force: bool) -> None:
    """Sign the card of A2A 1.0 in FILE; the signed card goes to stdout, or to --save.

    `openssl genpkey -algorithm ed25519 -out key.pem` makes a key, and `openssl pkey -in key.pem
    -pubout -out public.pem` its public half, for `card verify --keys`. A signature of the same
    key that is there already is replaced.
    """
    from dragoman.errors import ConfigError
    from dragoman.security import card_signatures
    from dragoman.security.card_keys import private_key
    from dragoman.security.card_members import known_members
    from dragoman.server.signing import key_content

    if jku and not jku.startswith("https://"):
        raise usage("--jku must be an address that begins with https://")
    card = _card_in(run.folder / Path(file).expanduser())
    check(run, card)
    try:
        private = private_key(key_content(str(run.folder / Path(key).expanduser())))
        name = kid or private.kid or private.thumbprint()
        signed = card_signatures.sign(_without(card, name), private, name, jku=jku)
    except ConfigError as error:
        raise usage(f"--key {key}: {str(error).removeprefix('keys: ')}") from None
    for place in _empty(known_members(card)):
        run.out.warn(f"{place} is empty: some verifiers drop it, and will not verify this card")
    if not save:
        run.out.note("Key", name)
        run.out.json(signed)
        return
    target = run.folder / Path(save).expanduser()
    _save(target, signed, force)
    run.out.item({"path": str(target), "kid": name}, {"path": "File", "kid": "Key"})


@command("verify")
@click.argument("ref", required=False)
@option(
    "--keys",
    multiple=True,
    aliases=("--key", "--jwks"),
    metavar="<path|url>",
    help="Keys that are trusted: JWKS or PEM, in a file or at an https address. Repeatable.",
)
@option(
    "--allow-jku",
    multiple=True,
    metavar="<origin>",
    help="Origin whose keys are trusted if a signature points there. Repeatable.",
)
@option(
    "--policy",
    type=click.Choice(["ignore", "prefer", "require"]),
    default="require",
    help="What is refused: nothing, what a trusted key contradicts, or all that is not verified.",
)
def verify(
    run: Invocation,
    ref: str | None,
    keys: tuple[str, ...],
    allow_jku: tuple[str, ...],
    policy: str,
) -> None:
    """Check the signatures of a card: REF, or -a, is a host, URL or file.

    One signature of a trusted key is enough. Accepted are ES256, ES384, EdDSA, and RS256 from 2048
    bits on. What the signature does not cover, such as members of older versions, is not vouched
    for.
    """
    run.take_reference(ref)
    if not keys and not allow_jku and policy != "ignore":
        raise usage("whose signature? --keys names the keys that you trust", remedy="--keys <path>")
    from dragoman.cli.session import cards_of, dialling, guarded, looking
    from dragoman.security import card_signatures
    from dragoman.security.card_keys import KeySet

    async def work() -> None:
        async with looking(run) as agent, dialling(run) as http:
            await agent.look(fresh=True)
            raw = agent.raw_card
            trusted = KeySet([])
            for one in keys:
                trusted |= await _keys(run, http, one)
            if allow_jku:
                origins = [_origin(one) for one in allow_jku]
                trusted |= await cards_of(run).keys(http, raw, origins, fresh=True)
        verdict = card_signatures.verify(raw, trusted)
        each = card_signatures.verify_each(raw, trusted)
        is_accepted = accepts(policy, verdict, each)
        if is_accepted or not run.out.is_json:
            _show(run, raw, policy, verdict, each)
        if not is_accepted:
            raise Failure(
                CARD_INVALID,
                f"the signature is {verdict_text(verdict)}",
                hint=next_command(run, "card", "get"),
            )
        if verdict.kind != "verified":
            run.out.warn(f"this card is not verified: the signature is {verdict_text(verdict)}")

    guarded(run, work)


def accepts(policy: str, verdict: "SignatureVerdict", each: "Sequence[Checked]") -> bool:
    """Tell whether a card is good enough.

    `prefer` takes one without signatures and one of unknown keys, as it has to while not
    everybody signs; what a trusted key is said to have signed and did not, it refuses.
    """
    from dragoman.security.card_signatures import DOES_NOT_FIT

    if policy == "ignore" or verdict.kind == "verified":
        return True
    contradicted = any(one.verdict.reason == DOES_NOT_FIT for one in each)
    return policy == "prefer" and not contradicted


async def _keys(run: Invocation, http: "Egress", place: str) -> "KeySet":
    """Return the keys at a place that the user trusts."""
    from dragoman.cli.session import cards_of
    from dragoman.client.credentials.origins import is_loopback
    from dragoman.egress.targets import NotCanonical, read_target
    from dragoman.errors import A2AError, ConfigError
    from dragoman.security.card_keys import KeySet

    try:
        if not place.startswith(("http://", "https://")):
            return KeySet.load(place)
        target = read_target(place)
        if target.scheme != "https" and not is_loopback(target):
            raise usage(
                f"--keys {place}: keys that anybody may change on their way are not trusted"
            )
        return await cards_of(run).keys_at(http, place)
    except NotCanonical as error:
        raise usage(f"--keys {place}: {error}") from None
    except ConfigError as error:
        raise usage(f"--keys {place}: {str(error).removeprefix('keys: ')}") from None
    except A2AError as error:
        raise Failure(
            code_of(error), f"--keys: {error.public}", hint=again(run, "--debug")
        ) from None


def _origin(text: str) -> str:
    from dragoman.egress.targets import NotCanonical, read_target

    try:
        target = read_target(text if "://" in text else f"https://{text}")
    except NotCanonical as error:
        raise usage(f"--allow-jku {text}: {error}") from None
    if target.scheme != "https":
        raise usage(f"--allow-jku {text}: must be an origin of https")
    return target.origin


def _show(
    run: Invocation,
    raw: Object,
    policy: str,
    verdict: "SignatureVerdict",
    each: "Sequence[Checked]",
) -> None:
    out = run.out
    if out.is_json:
        out.json(
            {
                "verdict": verdict.kind,
                "reason": verdict.reason,
                "kid": verdict.kid,
                "form": verdict.form,
                "policy": policy,
                "signatures": [
                    {
                        "verdict": one.verdict.kind,
                        "reason": one.verdict.reason,
                        "kid": one.kid,
                        "alg": one.algorithm,
                        "jku": one.key_url,
                    }
                    for one in each
                ],
            }
        )
        return
    out.field("Name", str(raw.get("name", "")))
    for one in each:
        facts = ", ".join(fact for fact in (f"key {one.kid}", one.algorithm) if fact.strip())
        reason = f": {one.verdict.reason}" if one.verdict.reason else ""
        out.field("Checked", f"{one.verdict.kind} ({facts}){reason}")
    out.field("Signature", verdict_text(verdict))
    if verdict.form not in ("", "strict"):
        out.field("Form", verdict.form)
    out.field("Policy", policy)


def _card_in(path: Path) -> Object:
    """Return the card in a file, as it is written."""
    from dragoman.client.cards.cache import LARGEST_CARD
    from dragoman.errors import ParseFailed
    from dragoman.transports import json_text

    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_CARD + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "there is no such file"
        raise Failure(CARD_NOT_FOUND, f"{path}: {reason}", hint=look_at(path)) from None
    if len(content) > LARGEST_CARD:
        raise Failure(
            CARD_INVALID,
            f"{path}: is larger than {LARGEST_CARD} bytes, as no card is",
            hint=look_at(path),
        )
    try:
        found = json_text.parse(content)
    except ParseFailed as error:
        raise Failure(
            CARD_INVALID, f"{path}: is not JSON: {error.public}", hint=_check(path)
        ) from None
    if not isinstance(found, dict) or "supportedInterfaces" not in found:
        raise Failure(
            CARD_INVALID,
            f"{path}: is no card of 1.0, which has supportedInterfaces; others are not signed",
            hint=_check(path),
        )
    return cast(Object, found)


def _check(path: Path) -> NextCommand:
    """Return what lists all that is wrong with the card in a file."""
    place = str(path) if path.is_absolute() else f"./{path}"
    return NextCommand(f"dragoman card get {shlex.quote(place)} --validate")


def _without(card: Object, kid: str) -> Object:
    """Return a card without signatures of a key."""
    from dragoman.security.card_keys import KeySet
    from dragoman.security.card_signatures import verify_each

    entries = card.get("signatures")
    if not isinstance(entries, list):
        return {name: value for name, value in card.items() if name != "signatures"}
    checked = verify_each(card, KeySet([]))
    signatures = [
        entry
        for entry, one in zip(cast("list[Any]", entries), checked, strict=False)
        if one.kid != kid
    ]
    return {**card, "signatures": signatures}


def _empty(value: Any, path: str = "") -> Iterator[str]:
    """Yield the places of what is empty; required members stay in what is signed even so."""
    if value in ("", []):
        yield path
    elif isinstance(value, dict):
        for name, item in cast(Object, value).items():
            if name != "params":
                yield from _empty(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for number, item in enumerate(cast("list[Any]", value)):
            yield from _empty(item, f"{path}[{number}]")


def _save(path: Path, card: Object, force: bool) -> None:
    """Write a card."""
    import msgspec

    save_whole(path, msgspec.json.format(msgspec.json.encode(card), indent=2) + b"\n", force)
