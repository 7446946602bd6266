"""Which agent's skills fit a text: by shared words; words of names and tags count three times.

Deliberately no more than that: a requester that wants a certain agent or skill names it. The
profile of an agent is cached until its description changes.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from dragoman.model.card import AgentSkill

_WORD = re.compile(r"[^\W_]+")
# Words without meaning for the choice.
_EMPTY = frozenset(
    """
    a an and any are as at be by can do for from have how i in into is it me my of on or our please
    that the their them these this to us want was we what which with you your
    """.split()  # noqa: SIM905 - forty quoted words are harder to read
)
_NAME_WEIGHT, _TEXT_WEIGHT = 3, 1
# Characters of a text that are read: reading it blocks other requests.
_LONGEST = 20_000
_MOST_CACHED = 20_000


class Profile(NamedTuple):
    """The words by which an agent is found."""

    # The ids of its skills; the first is empty and stands for the agent as a whole.
    skills: tuple[str, ...]
    # Of each word: indexes of skills, and its weight there.
    weights: dict[str, tuple[tuple[int, int], ...]]

    @property
    def all(self) -> frozenset[str]:
        """Return all words."""
        return frozenset(self.weights)


class Match(NamedTuple):
    """How well an agent fits."""

    score: int
    # The skill that fits best; empty: the agent as a whole.
    skill: str
    words: frozenset[str]


def words_of(text: str) -> frozenset[str]:
    """Return the meaningful words of a text; of a long one those at its beginning."""
    return frozenset(_WORD.findall(text[:_LONGEST].casefold())) - _EMPTY


class _CachedProfile(NamedTuple):
    name: str
    tags: Sequence[str]
    description: str
    skills: Sequence[AgentSkill]
    profile: Profile


_cache: dict[str, _CachedProfile] = {}


def profile(
    id: str, name: str, tags: Sequence[str], description: str, skills: Sequence[AgentSkill]
) -> Profile:
    """Return the words of an agent, by its id."""
    cached = _cache.get(id)
    # Lists of an agent are replaced, never changed: equal if they are the same.
    if (
        cached is not None
        and cached.skills is skills
        and cached.tags is tags
        and cached.description == description
        and cached.name == name
    ):
        return cached.profile
    found = _read(name, tags, description, skills)
    _cache.pop(id, None)
    _cache[id] = _CachedProfile(name, tags, description, skills, found)
    if len(_cache) > _MOST_CACHED:
        del _cache[next(iter(_cache))]
    return found


def _read(
    name: str, tags: Sequence[str], description: str, skills: Sequence[AgentSkill]
) -> Profile:
    texts = [([name, *tags], [description])]
    texts += [([one.id, one.name, *one.tags], [one.description, *one.examples]) for one in skills]
    weights: dict[str, tuple[tuple[int, int], ...]] = {}
    # Most words are in the same few skills: shared tuples halve the memory of many agents.
    same: dict[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]] = {}
    for at, (names, descriptions) in enumerate(texts):
        name_words = words_of(" ".join(names))
        for word in name_words | words_of(" ".join(descriptions)):
            places = (
                *weights.get(word, ()),
                (at, _NAME_WEIGHT if word in name_words else _TEXT_WEIGHT),
            )
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
    # The first of the best; the agent as a whole if no skill has any of the words.
    best = scores.index(max(scores))
    shared = [word for word, places in found for at, _ in places if at == best or not at]
    return Match(own + scores[best], known.skills[best], frozenset(shared))
