"""Finding agents by text, skill, tags, trust, price and status, among ten thousand.

Words, skills and tags lead to the agents that have them. Agents are in the order of their names, so
that one pass over what is left puts those with the highest score first.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

import msgspec

from dragoman.errors import InvalidParams
from dragoman.gateway.registry.registered import Registered, Status, serves
from dragoman.gateway.registry.word_index import WordIndex, Words, flags, members
from dragoman.model.identity import Principal

LIMIT, MOST = 20, 100
LONGEST_TEXT, MOST_WORDS = 1000, 16
# If fewer than one in this many match, sorting them is faster than a pass over all agents.
_SPARSE = 16


class Search(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is searched for; a field that is left out does not matter."""

    # Words that all have to occur in the agent's name, description, skills or tags.
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
    # The caller: finds agents that are online, and its own in any status. None: finds all.
    viewer: Principal | None = None
    owner: Principal | None = None
    limit: int = LIMIT
    offset: int = 0
    # The score and the name of an agent: those behind it. Agents that come or go meanwhile do not
    # move them, as they would move an offset.
    after: tuple[int, str] | None = None

    def check(self) -> None:
        """Raise `InvalidParams` for a field out of its limits."""
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


class SearchPage(msgspec.Struct, frozen=True):
    """A page of agents, how many there are in all, and `after` of the next page, if there is
    one."""

    agents: list[Registered]
    total: int
    next: tuple[int, str] | None = None


def may_see(agent: Registered, viewer: Principal | None) -> bool:
    """Tell whether a viewer may read what is known of an agent; None may. An agent that is for some
    callers is known to them and its owner alone. One that is away is still read: callers whose
    tasks it did rate it."""
    return viewer is None or serves(agent, viewer)


class _Entry:
    __slots__ = (
        "agent",
        "id",
        "name",
        "owner",
        "place",
        "price",
        "skills",
        "status",
        "tags",
        "words",
    )

    def __init__(self, agent: Registered, place: int) -> None:
        self.agent = agent
        self.place = place
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
        self.words = frozenset("\n".join(texts).lower().split())

    def seen_as(self, agent: Registered) -> None:
        """Take over the health, and leave the texts."""
        self.agent, self.status = agent, agent.status


class SearchIndex:
    """All agents, in the order of their names."""

    def __init__(self) -> None:
        self._words, self._tags, self._skills = Words(), WordIndex(), WordIndex()
        self._names: list[str] = []
        self._entries: list[_Entry] = []
        self._ids: list[str] = []
        # Entries by place, the free places, and the set of all others as bits.
        self._placed: list[_Entry | None] = []
        self._free: list[int] = []
        self._all = 0
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
        """Index these agents and no others."""
        ordered = sorted(agents, key=attrgetter("name"))
        self._names = [agent.name for agent in ordered]
        self._ids = [agent.id for agent in ordered]
        self._words, self._tags, self._skills = Words(), WordIndex(), WordIndex()
        self._placed, self._free, self._all = [], [], 0
        self._entries = [self._posted(agent) for agent in ordered]
        self._by_id = {agent.id: agent for agent in ordered}
        for entry in self._entries:
            self._settled(entry)

    def put(self, agent: Registered) -> None:
        """Index an agent in place of what it was."""
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
                self._entries[place] = self._settled(self._posted(agent))
                self._ids[place] = agent.id
            return
        self._names.insert(place, agent.name)
        self._entries.insert(place, self._settled(self._posted(agent)))
        self._ids.insert(place, agent.id)

    def remove(self, id: str) -> Registered | None:
        """Remove an agent from the index; return it."""
        agent = self._by_id.pop(id, None)
        if agent is not None:
            self._drop(agent.name)
        return agent

    def search(self, asked: Search, trust: Callable[[str], int]) -> SearchPage:
        """Return the agents that fit: the highest score first, equal ones by name."""
        asked.check()
        found = self._chosen(asked)
        if asked.status is not None:
            found = [entry for entry in found if entry.status == asked.status]
        if asked.viewer is not None:
            viewer = asked.viewer
            found = [
                entry
                for entry in found
                if entry.owner == viewer
                # Most have no list of callers; a call for each would double the time.
                or (
                    entry.status == "online"
                    and (not entry.agent.callers or serves(entry.agent, viewer))
                )
            ]
        if asked.owner is not None:
            found = [entry for entry in found if entry.owner == asked.owner]
        if asked.max_price is not None:
            most = asked.max_price
            found = [entry for entry in found if entry.price <= most]
        ids = self._ids if found is self._entries else [entry.id for entry in found]
        return _page(found, list(map(trust, ids)), asked)

    def _chosen(self, asked: Search) -> list[_Entry]:
        """Return the entries with the words, the skill and the tags, by name."""
        size, found = len(self._placed), self._all
        if asked.skill:
            found &= self._skills.any([asked.skill], size)
        if asked.tags:
            found &= self._tags.any({tag.lower() for tag in asked.tags}, size)
        if asked.category:
            found &= self._tags.any([asked.category.lower()], size)
        for word in {*asked.text.lower().split()}:
            # A word has no space in it, so it is in a text if it is in one of the text's words.
            found &= self._words.within(word, size, self._all)
        if found == self._all:
            return self._entries
        if found.bit_count() < len(self._entries) // _SPARSE:
            chosen = [entry for at in members(found) if (entry := self._placed[at])]
            return sorted(chosen, key=attrgetter("name"))
        is_in = flags(found, size)
        return [entry for entry in self._entries if is_in[entry.place]]

    def _posted(self, agent: Registered) -> _Entry:
        if not self._free:
            self._free.append(len(self._placed))
            self._placed.append(None)
        entry = _Entry(agent, self._free.pop())
        self._placed[entry.place] = entry
        self._all |= 1 << entry.place
        self._words.add(entry.words, entry.place)
        self._tags.add(entry.tags, entry.place)
        self._skills.add(entry.skills, entry.place)
        return entry

    def _settled(self, entry: _Entry) -> _Entry:
        size = len(self._placed)
        self._words.settle(entry.words, entry.place, size)
        self._tags.settle(entry.tags, entry.place, size)
        self._skills.settle(entry.skills, entry.place, size)
        return entry

    def _unpost(self, entry: _Entry) -> None:
        self._words.drop(entry.words, entry.place)
        self._tags.drop(entry.tags, entry.place)
        self._skills.drop(entry.skills, entry.place)
        self._placed[entry.place] = None
        self._all ^= 1 << entry.place
        self._free.append(entry.place)

    def _place(self, name: str) -> int | None:
        place = bisect_left(self._names, name)
        is_there = place < len(self._names) and self._names[place] == name
        return place if is_there else None

    def _drop(self, name: str) -> None:
        place = self._place(name)
        if place is not None:
            self._unpost(self._entries[place])
            del self._names[place], self._entries[place], self._ids[place]


def _is_alike(before: Registered, after: Registered) -> bool:
    """Tell whether nothing changed that a search looks at, but the health."""
    return (
        before.title == after.title
        and before.description == after.description
        and before.skills == after.skills
        and before.tags == after.tags
        and before.price == after.price
        and before.owner == after.owner
    )


def _page(found: Sequence[_Entry], scores: Sequence[int], asked: Search) -> SearchPage:
    counts = Counter(scores)
    ranked = sorted((score for score in counts if score >= asked.min_trust), reverse=True)
    first = asked.offset
    if asked.after is not None:
        score, name = asked.after
        first += sum(counts[one] for one in ranked if one > score)
        alike = (at for at, one in enumerate(scores) if one == score)
        first += sum(found[at].name <= name for at in alike)
    last = first + asked.limit
    # Only entries whose scores are on the page are sorted.
    shown, before, total = set[int](), 0, 0
    for score in ranked:
        if total < last and total + counts[score] > first:
            shown.add(score)
        elif not shown:
            before += counts[score]
        total += counts[score]
    # The sort is stable: within a score they stay in the order of their names.
    page = sorted(
        [at for at, score in enumerate(scores) if score in shown],
        key=scores.__getitem__,
        reverse=True,
    )
    page = page[first - before : last - before]
    agents = [found[at].agent for at in page]
    following = (scores[page[-1]], agents[-1].name) if page and last < total else None
    return SearchPage(agents, total, following)
