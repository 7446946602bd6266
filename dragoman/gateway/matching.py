"""Which agent's skills fit a text: the words they share, those of names and tags thrice.

Deliberately no more than that: who wants a certain agent or skill names it. What was read of an
agent is remembered for as long as the agent describes itself the same.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from dragoman.model.card import AgentSkill

_WORD = re.compile(r"[^\W_]+")
# Words that say nothing about what is wanted.
_EMPTY = frozenset(
    """
    a an and any are as at be by can do for from have how i in into is it me my of on or our please
    that the their them these this to us want was we what which with you your
    """.split()  # noqa: SIM905 - forty quoted words are harder to read
)
_NAMED, _SAID = 3, 1
# Characters of a text that are looked at: others wait while it is.
_LONGEST = 20_000
_MOST_REMEMBERED = 20_000


class _Texts(NamedTuple):
    # Words of names and tags, and those of descriptions and examples that are not among them.
    named: frozenset[str]
    said: frozenset[str]


class Profile(NamedTuple):
    """The words by which an agent is found."""

    own: _Texts
    # By the ids of skills.
    skills: tuple[tuple[str, _Texts], ...]
    all: frozenset[str]


class Match(NamedTuple):
    """How well an agent fits."""

    score: int
    # The skill that fits best; empty: what it says of itself as a whole.
    skill: str
    words: frozenset[str]


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text that say something; a long one says it at its beginning."""
    return frozenset(_WORD.findall(text[:_LONGEST].casefold())) - _EMPTY


class _Told(NamedTuple):
    name: str
    tags: Sequence[str]
    description: str
    skills: Sequence[AgentSkill]
    found: Profile


_remembered: dict[str, _Told] = {}


def profile(
    id: str, name: str, tags: Sequence[str], description: str, skills: Sequence[AgentSkill]
) -> Profile:
    """Return the words of an agent."""
    before = _remembered.get(id)
    # Lists of an agent are replaced, never changed: equal if they are the same.
    if (
        before is not None
        and before.skills is skills
        and before.tags is tags
        and before.description == description
        and before.name == name
    ):
        return before.found
    found = _read(name, tags, description, skills)
    _remembered.pop(id, None)
    _remembered[id] = _Told(name, tags, description, skills, found)
    if len(_remembered) > _MOST_REMEMBERED:
        del _remembered[next(iter(_remembered))]
    return found


def _read(
    name: str, tags: Sequence[str], description: str, skills: Sequence[AgentSkill]
) -> Profile:
    own = _texts([name, *tags], [description])
    of_skills = tuple(
        (one.id, _texts([one.id, one.name, *one.tags], [one.description, *one.examples]))
        for one in skills
    )
    everything = [own, *(texts for _, texts in of_skills)]
    return Profile(own, of_skills, frozenset[str]().union(*(a | b for a, b in everything)))


def _texts(names: Sequence[str], texts: Sequence[str]) -> _Texts:
    named = words_of(" ".join(names))
    return _Texts(named, words_of(" ".join(texts)) - named)


def match(known: Profile, words: frozenset[str]) -> Match | None:
    """Return how well an agent's best skill fits; None: not at all."""
    if known.all.isdisjoint(words):
        return None
    own, shared = _hits(known.own, words)
    best = Match(own, "", shared)
    for id, texts in known.skills:
        score, hits = _hits(texts, words)
        if own + score > best.score:
            best = Match(own + score, id, shared | hits)
    return best


def _hits(texts: _Texts, words: frozenset[str]) -> tuple[int, frozenset[str]]:
    named, said = words & texts.named, words & texts.said
    return _NAMED * len(named) + _SAID * len(said), named | said
