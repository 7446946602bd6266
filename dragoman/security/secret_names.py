"""The names of secrets: one table for everything that is shown, recorded, logged or passed on.

A name is taken apart into words, however it is written (`authToken`, `auth_token`, `X-Auth-Token`,
`AUTH.TOKEN`), and is that of a secret if words of it are in the table and what follows them does
not say that it is only about one (`tokenUrl`, `password_policy`). An unknown addition does not make
a name harmless. What secrets look like inside a text is in `secret_text`.
"""

import re
import unicodedata
from functools import lru_cache
from typing import Any, Literal

from dragoman.model.patterns import late_pattern

# Where a name stands. A `member` is one of JSON, a header or a variable. In an address, a form or a
# cookie a `parameter` may have a name that means something else in a document. `metadata` goes on
# to an agent that needs it: there a bare `key` is a word like any other.
Place = Literal["member", "parameter", "metadata"]

# fmt: off
# Words, and words that belong together, without what stands between them.
_SECRET = frozenset({
    "accesskey", "apikey", "apikeys", "apisecret", "assertion", "auth", "authcode",
    "authentication", "authorization", "authorizationcode", "backupcode", "backupcodes", "bearer",
    "clientassertion", "clientcert", "clientcertificate", "codeverifier", "connectionstring",
    "cookie", "cookies", "cred", "credential", "credentials", "creds", "csrf", "devicecode",
    "dbpass", "jsessionid", "jwe", "jwt", "jwts", "keypass", "mnemonic", "otp", "pass", "passcode",
    "passcodes", "passkey", "passphrase", "passphrases", "passwd", "password", "passwords",
    "passwort", "phpsessid", "privatekey", "privatekeys", "pwd", "recoverycode", "recoverycodes",
    "recoveryphrase", "secret", "secretid", "secrets", "seedphrase", "sessid", "sessionid",
    "privkey", "sessioncookie", "sessionkey", "smtppass", "sshpass", "token", "totp", "userpass",
    "xsrf",
})
# A word that is written in one piece and ends like this is one: `dbpassword`, `authtoken`.
_ENDINGS = (
    "token", "secret", "password", "passwd", "passphrase", "passcode", "credential", "credentials",
    "apikey", "accesskey", "secretkey", "privatekey", "signingkey", "encryptionkey", "masterkey",
    "sharedkey", "storekey", "sshkey", "sessionkey", "sessionid", "cookie",
)
# One that begins like this is one too, unless the rest says that it is about one: `apikeyprod`.
_BEGINNINGS = (
    "password", "passphrase", "passwd", "apikey", "accesstoken", "authtoken", "clientsecret",
    "privatekey",
)
# What is before a word of the table and makes something else of it.
_OPEN_BEFORE = {
    "token": frozenset({
        "page", "nextpage", "next", "previouspage", "prevpage", "continuation", "bos", "eos", "pad",
        "unk", "mask", "sep", "per", "last", "first",
    }),
    "key": frozenset({
        "public", "primary", "foreign", "partition", "sort", "cache", "idempotency", "dedup",
        "deduplication", "routing", "row", "object", "map", "dict", "hash", "range", "group",
        "message", "order", "lookup", "index", "unique", "composite", "candidate", "natural",
        "surrogate", "config", "json", "translation", "locale", "metric", "label", "tag", "hot",
        "arrow", "shortcut", "home", "any", "data", "item", "field", "column", "record", "setting",
        "by", "no", "per", "is", "has",
    }),
    "pass": frozenset({"first", "second", "third", "boarding", "last", "single", "two", "multi"}),
    "auth": frozenset({"no", "without"}),
}
# What counts the tokens of a language model, before and after them.
_COUNTED = frozenset({
    "max", "maximum", "min", "minimum", "total", "prompt", "completion", "input", "output",
    "cached", "reasoning", "thinking", "used", "num", "number", "remaining", "budget", "new",
    "context", "generated", "count", "n", "stop", "special", "audio", "text", "image", "read",
    "written", "avg", "average", "spent",
})
# What follows a word of the table and says that the value is about a secret, not one.
_ABOUT = frozenset({
    "age", "alg", "algo", "algorithm", "algorithms", "at", "audience", "banner", "budget",
    "changed", "claim", "claims", "class", "consent", "cost", "count", "counts", "created",
    "description", "dir", "directory", "disabled", "domain", "enabled", "endpoint", "endpoints",
    "env", "error", "errors", "expiration", "expired", "expires", "expiry", "file", "filename",
    "flow", "flows", "folder", "format", "grant", "grants", "hint", "href", "id", "ids", "in",
    "index", "invalid", "issuer", "kind", "kinds", "label", "leeway", "length", "lifetime",
    "limit", "limits", "location", "manager", "max", "method", "methods", "min", "missing", "mode",
    "modes", "name", "names", "needed", "of", "on", "path", "per", "policies", "policy",
    "position", "price", "prompt", "provider", "rate", "required", "requirement", "requirements",
    "rotated", "rotation", "rules", "scheme", "schemes", "scope", "scopes", "seconds", "server",
    "service", "size", "status", "store", "strategy", "strength", "supported", "time", "timeout",
    "title", "ttl", "type", "types", "until", "updated", "uri", "uris", "url", "urls", "usage",
    "used", "valid", "variable", "version",
})
# fmt: on
# After these it says whose a secret is, and not what is told of it: `password_of_service`.
_WHOSE = frozenset({"of", "for", "from", "on"})
# What brings a credential in an address, and is something else in a document.
_PARAMETERS = frozenset({("code",), ("key",)})
_LONGEST_RUN = max(map(len, _SECRET))
# Longer names are not in use; what is at their ends still counts.
_MOST = 200
_WORD = late_pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_]+|\d+")
# Capitals may also be a word of their own before small letters: `SECRETkey`.
_CAPITALS = late_pattern(r"[A-Z]{2,}[a-z]")
_WORD_OF_CAPITALS = late_pattern(r"[A-Z]{2,}|[A-Z]?[a-z]+|[^\W\d_]+|\d+")
_PLURAL = {"tokens": "token", "keys": "key"}


def is_secret(name: str, place: Place = "member") -> bool:
    """Say whether what has this name is a secret."""
    if len(name) > _MOST:
        name = f"{name[:_MOST]}_{name[-_MOST:]}"
    return _judged(name, place)


def holds_secret(name: str, value: Any, place: Place = "member") -> bool:
    """Say whether a value of this name is one: a flag is none, and no number of tokens is."""
    if value is None or isinstance(value, bool) or not is_secret(name, place):
        return False
    if isinstance(value, int | float):
        return not words(name)[-1].endswith("tokens")
    # A public key is an object of this name.
    return isinstance(value, str) or words(name) != ("key",)


def is_about(name: str) -> bool:
    """Say whether a value of this name only describes a secret: a scheme, an address."""
    return words(name)[-1:] != () and words(name)[-1] in _ABOUT


@lru_cache(maxsize=4096)
def _judged(name: str, place: Place) -> bool:
    if _is_of_secret(words(name), place):
        return True
    return _CAPITALS.search(name) is not None and _is_of_secret(
        _words(name, _WORD_OF_CAPITALS), place
    )


def _is_of_secret(found: tuple[str, ...], place: Place) -> bool:
    end = _last(found)
    if end is None:
        return place != "metadata" and _is_bare(found, place)
    rest = found[end:]
    return (rest[:1] != () and rest[0] in _WHOSE) or not any(word in _ABOUT for word in rest)


def words(name: str) -> tuple[str, ...]:
    """Return the words of a name in small letters, without the numbers."""
    return _words(name, _WORD)


def _words(name: str, word: re.Pattern[str]) -> tuple[str, ...]:
    # Full-width letters and the like are read as what they look like.
    plain = unicodedata.normalize("NFKC", name).replace("OAuth", "Oauth")
    return tuple(one.lower() for one in word.findall(plain) if not one.isdigit())


def _is_bare(found: tuple[str, ...], place: Place) -> bool:
    if place == "parameter":
        return found[-1:] in (("sig",), ("signature",)) or found in _PARAMETERS
    return found == ("key",)


def _last(found: tuple[str, ...]) -> int | None:
    """Return where the last words that name a secret end."""
    for end in range(len(found), 0, -1):
        if _ends_secret(found[:end]):
            return end
    return None


def _ends_secret(found: tuple[str, ...]) -> bool:
    """Say whether the last of these words name a secret."""
    if _is_open(found):
        return False
    last = found[-1]
    if last in ("key", "keys"):
        # Any key of something is one, but for those that are known to open nothing.
        return len(found) > 1
    if last == "tokens":
        return len(found) == 1 or found[-2] not in _COUNTED
    if last not in _SECRET:
        if last.endswith(_ENDINGS):
            return _one_piece(last)
        if last.endswith("s") and last[:-1].endswith(_ENDINGS):
            counted = last.removesuffix("tokens")
            return _one_piece(last[:-1]) and counted not in _COUNTED
        if last.startswith(_BEGINNINGS):
            begun = next(one for one in _BEGINNINGS if last.startswith(one))
            return last[len(begun) :] not in _ABOUT and last != "passwordless"
    return any(run in _SECRET for run in _runs(found))


def _is_open(found: tuple[str, ...]) -> bool:
    """Say whether the last word is something else after the word before it."""
    last = _PLURAL.get(found[-1], found[-1])
    return len(found) > 1 and found[-2] in _OPEN_BEFORE.get(last, ())


def _one_piece(word: str) -> bool:
    """Say whether a word in one piece is a secret: `pagetoken` is none."""
    return not any(
        word.endswith(last) and word[: -len(last)] in before
        for last, before in _OPEN_BEFORE.items()
    )


def _runs(found: tuple[str, ...]) -> list[str]:
    """Return the words at the end in one piece: the last one, the last two, and so on."""
    runs, run = list[str](), ""
    for word in reversed(found):
        run = word + run
        if len(run) > _LONGEST_RUN:
            break
        runs.append(run)
    return runs
