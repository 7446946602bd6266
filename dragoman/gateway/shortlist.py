"""Who comes into question for a task, among many thousands: those with a skill, or with a word.

Routing weighs each candidate, which takes too long for all of them at once. Of words, the rare ones
say most about whom a text is for: they are looked at first, until there are enough. With fewer
agents than that nobody is left out.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence

from dragoman.gateway.agents import Registered
from dragoman.gateway.matching import profile, words_of

# So many are weighed; of more that have nothing rare in common with a text, the trusted ones.
ENOUGH = 200


class Shortlist:
    """The agents by their words and skills, kept up to date by whoever hears of changes."""

    def __init__(self) -> None:
        self._agents: dict[str, Registered] = {}
        self._words: dict[str, set[str]] = {}
        self._skills: dict[str, set[str]] = {}
        self._defaults: set[str] = set()

    def fill(self, agents: Iterable[Registered]) -> None:
        """Take in agents."""
        for agent in agents:
            self.note(agent)

    def note(self, agent: Registered) -> None:
        """Take in an agent, or what changed about it."""
        before = self._agents.get(agent.id)
        self._agents[agent.id] = agent
        if before is not None:
            if _is_alike(before, agent):
                return
            self._forget(before)
        for word in _words(agent):
            self._words.setdefault(word, set()).add(agent.id)
        for skill in agent.skills:
            self._skills.setdefault(skill.id, set()).add(agent.id)
        if agent.is_default:
            self._defaults.add(agent.id)

    def drop(self, id: str) -> None:
        """Forget an agent that was removed."""
        agent = self._agents.pop(id, None)
        if agent is not None:
            self._forget(agent)

    def with_skill(self, skill: str) -> list[str]:
        """Return those that have a skill."""
        return sorted(self._skills.get(skill, ()))

    def for_text(self, text: str, trust: Callable[[str], int]) -> list[str]:
        """Return those that share words with a text, and those that do what nobody else does."""
        having = [self._words[word] for word in words_of(text) if word in self._words]
        found: set[str] = set()
        for ids in sorted(having, key=len):
            if len(found) + len(ids) <= ENOUGH:
                found |= ids
            elif not found:
                found.update(heapq.nlargest(ENOUGH, ids, key=trust))
        return sorted(found | self._defaults)

    def _forget(self, agent: Registered) -> None:
        _taken(self._words, _words(agent), agent.id)
        _taken(self._skills, [skill.id for skill in agent.skills], agent.id)
        self._defaults.discard(agent.id)


def described(agent: Registered) -> str:
    """Return what an agent says of itself as a whole."""
    return f"{agent.title} {agent.description}"


def _words(agent: Registered) -> frozenset[str]:
    return profile(agent.id, agent.name, agent.tags, described(agent), agent.skills).all


def _taken(by_key: dict[str, set[str]], keys: Iterable[str], id: str) -> None:
    for key in keys:
        having = by_key.get(key)
        if having is not None:
            having.discard(id)
            if not having:
                del by_key[key]


def _is_alike(before: Registered, after: Registered) -> bool:
    """Tell whether nothing changed by which an agent is found."""

    def found_by(agent: Registered) -> Sequence[object]:
        return (
            agent.name,
            agent.title,
            agent.description,
            agent.tags,
            agent.skills,
            agent.is_default,
        )

    return found_by(before) == found_by(after)
