"""Names, literals and docstrings of Python for the texts of strangers."""

import keyword
import re
import textwrap
import unicodedata

# Names that a module uses itself, in any place where one of a card could stand.
TAKEN = frozenset(
    [
        *("self", "found", "super", "property", "print"),
        *("object", "type", "str", "int", "float", "bool", "bytes", "list", "dict", "tuple"),
        *("Any", "Literal", "NotRequired", "TypedDict", "ClassVar", "AsyncIterator", "Iterator"),
        *("Answer", "Content", "Events", "Stream", "TypedClient", "TypedSync"),
    ]
)
_WORD = re.compile(r"[A-Za-z0-9]+")
_WIDTH = 92
_MAX_ABOUT = 2000
_MAX_NAME = 48


def words_of(text: str) -> list[str]:
    """Return the words of a text that can be part of a name; `forecastFor` has two."""
    plain = unicodedata.normalize("NFKD", text[:500])
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", plain)
    return _WORD.findall(apart)


def snake_name(text: str, default: str) -> str:
    """Return the name of a function or a parameter."""
    name = "_".join(words_of(text)).lower()[:_MAX_NAME].strip("_") or default
    return _usable(name if not name[0].isdigit() else f"{default}_{name}")


def class_name(text: str, default: str) -> str:
    """Return the name of a class."""
    name = "".join(word[0].upper() + word[1:] for word in words_of(text))[:_MAX_NAME] or default
    return _usable(name if not name[0].isdigit() else f"{default}{name}")


def _usable(name: str) -> str:
    is_taken = keyword.iskeyword(name) or keyword.issoftkeyword(name) or name in TAKEN
    return f"{name}_" if is_taken else name


def free_name(name: str, used: set[str]) -> str:
    """Return a name that is not used yet, and use it."""
    found, number = name, 2
    while found in used:
        found, number = f"{name}{'' if name.endswith('_') else '_'}{number}", number + 1
    used.add(found)
    return found


def literal(text: str) -> str:
    """Return a string literal, in ASCII, with double quotes where that is as short."""
    found = ascii(text)
    return f'"{found[1:-1]}"' if found[0] == "'" and '"' not in found else found


def docstring(text: str, indent: str) -> str:
    """Return a docstring with a text, as lines; what is no visible character is left out."""
    shown = "".join(sign if _is_visible(sign) else " " for sign in text[:_MAX_ABOUT])
    paragraphs = [" ".join(one.split()) for one in re.split(r"\n\s*\n", shown)]
    paragraphs = [one for one in paragraphs if one] or ["Says nothing of itself."]
    lines: list[str] = []
    for one in paragraphs:
        escaped = one.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
        wrapped = textwrap.wrap(escaped, _WIDTH - len(indent), break_on_hyphens=False)
        # A wrap must not part a backslash from what it escapes.
        whole = wrapped if " ".join(wrapped) == escaped else [escaped]
        lines += [*whole, ""]
    body = f"\n{indent}".join(lines[:-1])
    body = re.sub(r"[ \t]+$", "", body, flags=re.MULTILINE)
    end = f"\n{indent}" if len(lines) > 2 else " " if body.endswith('"') else ""
    return f'{indent}"""{body}{end}"""'


def _is_visible(sign: str) -> bool:
    # Controls, marks that turn the direction of text, and halves of characters.
    return sign == "\n" or not unicodedata.category(sign).startswith("C")
