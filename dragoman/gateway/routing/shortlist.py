"""The candidates for a task among many thousands of agents: by skill, or by shared words.

Routing weighs each candidate, which takes too long for all agents. Rare words distinguish agents
best: they are used first, until there are enough candidates. With fewer agents than that none is
left out.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence

from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.routing.matching import profile, words_of

# So many are weighed; if only common words match, the most trusted agents.
ENOUGH = 200


class Shortlist:
    """An index of agents by words and skills; the registry reports changes to it."""

    def __init__(self) -> None:
        self._agents: dict[str, Registered] = {}
        self._words: dict[str, set[str]] = {}
        self._skills: dict[str, set[str]] = {}
        self._defaults: set[str] = set()

    def fill(self, agents: Iterable[Registered]) -> None:
        """Add agents."""
        for agent in agents:
            self.note(agent)

    def note(self, agent: Registered) -> None:
        """Add an agent, or its changes."""
        before = self._agents.get(agent.id)
        self._agents[agent.id] = agent
        if before is not None:
            if _is_indexed_alike(before, agent):
                return
            self._unindex(before)
        for word in _words(agent):
            self._words.setdefault(word, set()).add(agent.id)
        for skill in agent.skills:
            self._skills.setdefault(skill.id, set()).add(agent.id)
        if agent.is_default:
            self._defaults.add(agent.id)

    def drop(self, id: str) -> None:
        """Drop an agent that was removed."""
        agent = self._agents.pop(id, None)
        if agent is not None:
            self._unindex(agent)

    def with_skill(self, skill: str) -> list[str]:
        """Return the ids of agents that have a skill."""
        return sorted(self._skills.get(skill, ()))

    def for_text(self, text: str, trust: Callable[[str], int]) -> list[str]:
        """Return the ids of agents that share words with a text, and of the default agents."""
        having = [self._words[word] for word in words_of(text) if word in self._words]
        found: set[str] = set()
        for ids in sorted(having, key=len):
            if len(found) + len(ids) <= ENOUGH:
                found |= ids
            elif not found:
                found.update(heapq.nlargest(ENOUGH, ids, key=trust))
        return sorted(found | self._defaults)

    def _unindex(self, agent: Registered) -> None:
        _discard(self._words, _words(agent), agent.id)
        _discard(self._skills, [skill.id for skill in agent.skills], agent.id)
        self._defaults.discard(agent.id)


def described(agent: Registered) -> str:
    """Return the description of an agent as a whole."""
    return f"{agent.title} {agent.description}"


def _words(agent: Registered) -> frozenset[str]:
    return profile(agent.id, agent.name, agent.tags, described(agent), agent.skills).all


def _discard(by_key: dict[str, set[str]], keys: Iterable[str], id: str) -> None:
    for key in keys:
        having = by_key.get(key)
        if having is not None:
            having.discard(id)
            if not having:
                del by_key[key]


def _is_indexed_alike(before: Registered, after: Registered) -> bool:
    """Tell whether nothing changed that the index depends on."""

    def indexed(agent: Registered) -> Sequence[object]:
        return (
            agent.name,
            agent.title,
            agent.description,
            agent.tags,
            agent.skills,
            agent.is_default,
        )

    return indexed(before) == indexed(after)
