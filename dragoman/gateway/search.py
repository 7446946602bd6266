"""Finding agents: by text, skill, tags, trust, price and status, among ten thousand at once.

Words, skills and tags lead to those that have them; agents stand in the order of their names, so
that one pass over what is left puts the trusted first.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import attrgetter

import msgspec

from dragoman.errors import InvalidParams
from dragoman.gateway.agents import Registered, Status

LIMIT, MOST = 20, 100
LONGEST_TEXT, MOST_WORDS = 1000, 16
# A part that is in more words than these is in so many texts that looking into them is faster.
_MOST_KEYS = 64


class Search(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is looked for; what is left out does not matter."""

    # Words, all of which are in the agent's name, description, skills or tags.
    text: str = ""
    # The id of a skill.
    skill: str = ""
    # Any of these.
    tags: Sequence[str] = ()
    category: str = ""
    min_trust: int = 0
    # Micro-credits.
    max_price: int | None = None
    status: Status | None = None
    # Who looks: sees what is online, and its own whatever its status. None: sees everything.
    viewer: str | None = None
    owner: str | None = None
    limit: int = LIMIT
    offset: int = 0

    def check(self) -> None:
        """Raise `InvalidParams` for what cannot be looked for."""
        if not 1 <= self.limit <= MOST:
            raise InvalidParams(f"must be between 1 and {MOST}", field="limit")
        if self.offset < 0:
            raise InvalidParams("must not be negative", field="offset")
        if not 0 <= self.min_trust <= 100:
            raise InvalidParams("must be between 0 and 100", field="minTrustScore")
        if len(self.text) > LONGEST_TEXT:
            raise InvalidParams(f"must have at most {LONGEST_TEXT} characters", field="text")
        if len(self.text.split()) > MOST_WORDS:
            raise InvalidParams(f"must have at most {MOST_WORDS} words", field="text")


class Found(msgspec.Struct, frozen=True):
    """A page of what was found, and how many there are."""

    agents: list[Registered]
    total: int


def may_see(agent: Registered, viewer: str | None) -> bool:
    """Tell whether somebody may know of an agent; None may."""
    return viewer is None or agent.status == "online" or agent.owner == viewer


class _Entry:
    __slots__ = (
        "agent",
        "id",
        "name",
        "owner",
        "price",
        "skills",
        "status",
        "tags",
        "text",
        "words",
    )

    def __init__(self, agent: Registered) -> None:
        self.agent = agent
        self.id = agent.id
        self.name = agent.name
        self.owner = agent.owner
        self.status = agent.status
        self.price = agent.price
        self.skills = frozenset(skill.id for skill in agent.skills)
        own = [tag.lower() for tag in agent.tags]
        of_skills = [tag.lower() for skill in agent.skills for tag in skill.tags]
        self.tags = frozenset([*own, *of_skills])
        texts = [agent.name, agent.title, agent.description, *self.tags]
        for skill in agent.skills:
            texts += [skill.id, skill.name, skill.description]
        self.text = "\n".join(texts).lower()
        self.words = frozenset(self.text.split())

    def seen_as(self, agent: Registered) -> None:
        """Take over what changes often, and leave the texts."""
        self.agent, self.status = agent, agent.status


class _Postings:
    """Who has what: a word, a tag, a skill."""

    def __init__(self) -> None:
        self._by_key: dict[str, list[_Entry]] = {}
        # All keys in one text, one a line; None: they changed since it was made.
        self._keys: str | None = None

    def add(self, keys: Iterable[str], entry: _Entry) -> None:
        for key in keys:
            having = self._by_key.get(key)
            if having is None:
                self._by_key[key] = [entry]
                self._keys = None
            else:
                having.append(entry)

    def drop(self, keys: Iterable[str], entry: _Entry) -> None:
        for key in keys:
            having = self._by_key[key]
            having.remove(entry)
            if not having:
                del self._by_key[key]
                self._keys = None

    def any(self, keys: Iterable[str]) -> set[_Entry]:
        """Return those that have one of these."""
        return set[_Entry]().union(*(self._by_key.get(key, ()) for key in keys))

    def within(self, part: str) -> set[_Entry] | None:
        """Return those that have a key with this in it; None: there are too many such keys."""
        if self._keys is None:
            self._keys = "\n".join(["", *self._by_key, ""])
        keys, found, at = self._keys, list[str](), 0
        while (at := keys.find(part, at)) >= 0:
            if len(found) == _MOST_KEYS:
                return None
            end = keys.index("\n", at)
            found.append(keys[keys.rindex("\n", 0, at + 1) + 1 : end])
            at = end
        return self.any(found)


class Index:
    """All agents, in the order of their names."""

    def __init__(self) -> None:
        self._words, self._tags, self._skills = _Postings(), _Postings(), _Postings()
        self._names: list[str] = []
        self._entries: list[_Entry] = []
        self._by_id: dict[str, Registered] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Registered]:
        return iter([entry.agent for entry in self._entries])

    def get(self, ref: str) -> Registered | None:
        """Return an agent by its id or its name."""
        if (found := self._by_id.get(ref)) is not None:
            return found
        place = self._place(ref)
        return None if place is None else self._entries[place].agent

    def fill(self, agents: Iterable[Registered]) -> None:
        """Have these agents and no others."""
        ordered = sorted(agents, key=attrgetter("name"))
        self._names = [agent.name for agent in ordered]
        self._words, self._tags, self._skills = _Postings(), _Postings(), _Postings()
        self._entries = [self._posted(agent) for agent in ordered]
        self._by_id = {agent.id: agent for agent in ordered}

    def put(self, agent: Registered) -> None:
        """Have an agent as it is."""
        before = self._by_id.get(agent.id)
        self._by_id[agent.id] = agent
        if before is not None and before.name != agent.name:
            self._drop(before.name)
        place = bisect_left(self._names, agent.name)
        if place < len(self._names) and self._names[place] == agent.name:
            if before is not None and _is_alike(before, agent):
                self._entries[place].seen_as(agent)
            else:
                self._unpost(self._entries[place])
                self._entries[place] = self._posted(agent)
            return
        self._names.insert(place, agent.name)
        self._entries.insert(place, self._posted(agent))

    def remove(self, id: str) -> Registered | None:
        """Have an agent no longer; return it."""
        agent = self._by_id.pop(id, None)
        if agent is not None:
            self._drop(agent.name)
        return agent

    def search(self, asked: Search, trust: Callable[[str], int]) -> Found:
        """Return those that fit: the trusted first, equals by name."""
        asked.check()
        found = self._chosen(asked)
        if asked.status is not None:
            found = [entry for entry in found if entry.status == asked.status]
        if asked.viewer is not None:
            viewer = asked.viewer
            found = [entry for entry in found if entry.status == "online" or entry.owner == viewer]
        if asked.owner is not None:
            found = [entry for entry in found if entry.owner == asked.owner]
        if asked.max_price is not None:
            most = asked.max_price
            found = [entry for entry in found if entry.price <= most]
        return _page(found, asked, trust)

    def _chosen(self, asked: Search) -> list[_Entry]:
        """Return those with the words, the skill and the tags that are asked for, by name."""
        sets: list[set[_Entry]] = []
        if asked.skill:
            sets.append(self._skills.any([asked.skill]))
        if asked.tags:
            sets.append(self._tags.any(tag.lower() for tag in asked.tags))
        if asked.category:
            sets.append(self._tags.any([asked.category.lower()]))
        common: list[str] = []
        for word in {*asked.text.lower().split()}:
            # It has no space in it, so it is in a text if it is in one of the text's words.
            having = self._words.within(word)
            if having is None:
                common.append(word)
            else:
                sets.append(having)
        found = self._entries
        if sets:
            chosen = sets[0].intersection(*sets[1:])
            if len(chosen) < len(found) // 16:
                found = sorted(chosen, key=attrgetter("name"))
            else:
                found = [entry for entry in found if entry in chosen]
        for word in common:
            found = [entry for entry in found if word in entry.text]
        return found

    def _posted(self, agent: Registered) -> _Entry:
        entry = _Entry(agent)
        self._words.add(entry.words, entry)
        self._tags.add(entry.tags, entry)
        self._skills.add(entry.skills, entry)
        return entry

    def _unpost(self, entry: _Entry) -> None:
        self._words.drop(entry.words, entry)
        self._tags.drop(entry.tags, entry)
        self._skills.drop(entry.skills, entry)

    def _place(self, name: str) -> int | None:
        place = bisect_left(self._names, name)
        is_there = place < len(self._names) and self._names[place] == name
        return place if is_there else None

    def _drop(self, name: str) -> None:
        place = self._place(name)
        if place is not None:
            self._unpost(self._entries[place])
            del self._names[place], self._entries[place]


def _is_alike(before: Registered, after: Registered) -> bool:
    """Tell whether nothing changed that is looked for, but how the agent is seen."""
    return (
        before.title == after.title
        and before.description == after.description
        and before.skills == after.skills
        and before.tags == after.tags
        and before.price == after.price
        and before.owner == after.owner
    )


def _page(found: Sequence[_Entry], asked: Search, trust: Callable[[str], int]) -> Found:
    by_score: defaultdict[int, list[_Entry]] = defaultdict(list)
    for entry in found:
        by_score[trust(entry.id)].append(entry)
    scores = sorted((score for score in by_score if score >= asked.min_trust), reverse=True)
    total = sum(len(by_score[score]) for score in scores)
    # Within a score they are still in the order of their names.
    ordered = chain.from_iterable(by_score[score] for score in scores)
    page = islice(ordered, asked.offset, asked.offset + asked.limit)
    return Found([entry.agent for entry in page], total)
