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


class Profile(NamedTuple):
    """The words by which an agent is found."""

    # The ids of its skills; the first is empty: what it says of itself as a whole.
    skills: tuple[str, ...]
    # What a word weighs in which of them, by their places there.
    weights: dict[str, tuple[tuple[int, int], ...]]

    @property
    def all(self) -> frozenset[str]:
        """Return all words."""
        return frozenset(self.weights)


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
    texts = [([name, *tags], [description])]
    texts += [([one.id, one.name, *one.tags], [one.description, *one.examples]) for one in skills]
    weights: dict[str, tuple[tuple[int, int], ...]] = {}
    # Most words are in the same few places: kept once, thousands of agents take half the memory.
    same: dict[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]] = {}
    for at, (names, said) in enumerate(texts):
        named = words_of(" ".join(names))
        for word in named | words_of(" ".join(said)):
            places = *weights.get(word, ()), (at, _NAMED if word in named else _SAID)
            weights[word] = same.setdefault(places, places)
    return Profile(("", *(one.id for one in skills)), weights)


def match(known: Profile, words: frozenset[str]) -> Match | None:
    """Return how well an agent's best skill fits; None: not at all."""
    weights = known.weights
    found = [(word, weights[word]) for word in words if word in weights]
    if not found:
        return None
    scores = [0] * len(known.skills)
    for _, places in found:
        for at, weight in places:
            scores[at] += weight
    own, scores[0] = scores[0], 0
    # The first of the best; itself as a whole if no skill has any of the words.
    best = scores.index(max(scores))
    shared = [word for word, places in found for at, _ in places if at == best or not at]
    return Match(own + scores[best], known.skills[best], frozenset(shared))
