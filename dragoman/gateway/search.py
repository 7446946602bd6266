"""Finding agents: by text, skill, tags, trust, price and status, among ten thousand at once.

Each agent has its texts at hand in lower case, and agents stand in the order of their names, so
that one pass filters and one stable sort puts the trusted first.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

import msgspec

from dragoman.errors import InvalidParams
from dragoman.gateway.agents import Registered, Status

LIMIT, MOST = 20, 100
LONGEST_TEXT = 1000


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


class Found(msgspec.Struct, frozen=True):
    """A page of what was found, and how many there are."""

    agents: list[Registered]
    total: int


def may_see(agent: Registered, viewer: str | None) -> bool:
    """Tell whether somebody may know of an agent; None may."""
    return viewer is None or agent.status == "online" or agent.owner == viewer


class _Entry:
    __slots__ = ("agent", "id", "price", "skills", "status", "tags", "text")

    def __init__(self, agent: Registered) -> None:
        self.agent = agent
        self.id = agent.id
        self.status = agent.status
        self.price = agent.price
        self.skills = frozenset(skill.id for skill in agent.skills)
        own = [tag.lower() for tag in agent.tags]
        of_skills = [tag.lower() for skill in agent.skills for tag in skill.tags]
        self.tags = frozenset([*own, *of_skills])
        texts = [agent.name, agent.title, agent.description, *self.tags]
        for skill in agent.skills:
            texts += [skill.id, skill.name, skill.description]
        # A separator that no word has, so that none is found across two texts.
        self.text = "\n".join(texts).lower()

    def seen_as(self, agent: Registered) -> None:
        """Take over what changes often, and leave the texts."""
        self.agent, self.status = agent, agent.status


class Index:
    """All agents, in the order of their names."""

    def __init__(self) -> None:
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
        self._entries = [_Entry(agent) for agent in ordered]
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
                self._entries[place] = _Entry(agent)
            return
        self._names.insert(place, agent.name)
        self._entries.insert(place, _Entry(agent))

    def remove(self, id: str) -> Registered | None:
        """Have an agent no longer; return it."""
        agent = self._by_id.pop(id, None)
        if agent is not None:
            self._drop(agent.name)
        return agent

    def search(self, asked: Search, trust: Callable[[str], int]) -> Found:
        """Return those that fit: the trusted first, equals by name."""
        asked.check()
        found = self._entries
        if asked.status is not None:
            found = [entry for entry in found if entry.status == asked.status]
        if asked.viewer is not None:
            viewer = asked.viewer
            found = [
                entry for entry in found if entry.status == "online" or entry.agent.owner == viewer
            ]
        if asked.owner is not None:
            found = [entry for entry in found if entry.agent.owner == asked.owner]
        if asked.skill:
            found = [entry for entry in found if asked.skill in entry.skills]
        if asked.tags:
            wanted = frozenset(tag.lower() for tag in asked.tags)
            found = [entry for entry in found if not wanted.isdisjoint(entry.tags)]
        if asked.category:
            category = asked.category.lower()
            found = [entry for entry in found if category in entry.tags]
        if asked.max_price is not None:
            most = asked.max_price
            found = [entry for entry in found if entry.price <= most]
        for word in asked.text.lower().split():
            found = [entry for entry in found if word in entry.text]
        return _page(found, asked, trust)

    def _place(self, name: str) -> int | None:
        place = bisect_left(self._names, name)
        is_there = place < len(self._names) and self._names[place] == name
        return place if is_there else None

    def _drop(self, name: str) -> None:
        place = self._place(name)
        if place is not None:
            del self._names[place], self._entries[place]


def _is_alike(before: Registered, after: Registered) -> bool:
    """Tell whether nothing changed that is looked for, but how the agent is seen."""
    return (
        before.title == after.title
        and before.description == after.description
        and before.skills == after.skills
        and before.tags == after.tags
        and before.price == after.price
    )


def _page(found: Sequence[_Entry], asked: Search, trust: Callable[[str], int]) -> Found:
    scores = {entry.id: trust(entry.id) for entry in found}
    if asked.min_trust:
        least = asked.min_trust
        found = [entry for entry in found if scores[entry.id] >= least]
    # Stable, also in reverse: equals stay in the order of their names.
    ordered = sorted(found, key=lambda entry: scores[entry.id], reverse=True)
    page = ordered[asked.offset : asked.offset + asked.limit]
    return Found([entry.agent for entry in page], len(ordered))
