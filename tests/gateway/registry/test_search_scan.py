"""What the index finds is what looking at every agent finds, whatever was put in and taken out."""

import random
from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.registry.search import Search, SearchIndex, may_see
from dragoman.model.card import AgentSkill
from dragoman.model.identity import Principal

# Some that everybody has, some that are parts of others, some that are rare.
WORDS = ["agent", "gent", "Straße", "ИЩЕТ", "a", "a-b", "x1", *(f"w{n}" for n in range(60))]
TAGS = ["Geo", "math", "x1", "café"]
SKILLS = ["sum", "sing", "agent"]
OWNERS = ["", "ada", "bob"]


def made(number: int, noise: random.Random) -> Registered:
    return Registered(
        id=f"id-{number}",
        # Names that do not sort as their numbers do, and change places now and then.
        name=f"agent-{noise.choice('xyz')}{number}",
        title=" ".join(noise.choices(WORDS, k=2)),
        description="agent " + " ".join(noise.choices(WORDS, k=noise.randrange(8))),
        url="https://agent.example.com/",
        owner=Principal.read(noise.choice(OWNERS)),
        skills=[
            AgentSkill(
                id=noise.choice(SKILLS),
                name=noise.choice(WORDS),
                description="Does it",
                tags=noise.sample(TAGS, noise.randrange(2)),
            )
            for _ in range(noise.randrange(3))
        ],
        tags=noise.sample(TAGS, noise.randrange(3)),
        price=noise.randrange(4),
        status=noise.choice(["online", "degraded", "offline"]),
    )


def scanned(
    agents: Mapping[str, Registered], asked: Search, scores: Mapping[str, int]
) -> tuple[list[str], int]:
    """Return the ids of a page and how many there are, found by looking at every agent."""

    def fits(one: Registered) -> bool:
        own = [tag.lower() for tag in one.tags]
        tags = {*own, *(tag.lower() for skill in one.skills for tag in skill.tags)}
        skills = [
            text for skill in one.skills for text in (skill.id, skill.name, skill.description)
        ]
        text = " ".join([one.name, one.title, one.description, *tags, *skills]).lower()
        return (
            all(word in text for word in asked.text.lower().split())
            and (not asked.skill or any(skill.id == asked.skill for skill in one.skills))
            and (not asked.tags or not tags.isdisjoint(tag.lower() for tag in asked.tags))
            and (not asked.category or asked.category.lower() in tags)
            and scores[one.id] >= asked.min_trust
            and (asked.max_price is None or one.price <= asked.max_price)
            and asked.status in (None, one.status)
            and asked.owner in (None, one.owner)
            and (one.status == "online" or asked.viewer in (None, one.owner))
            and may_see(one, asked.viewer)
        )

    found = sorted(filter(fits, agents.values()), key=lambda one: (-scores[one.id], one.name))
    rest = found
    if asked.after is not None:
        score, name = asked.after
        rest = [one for one in found if (-scores[one.id], one.name) > (-score, name)]
    page = rest[asked.offset : asked.offset + asked.limit]
    return [one.id for one in page], len(found)


PARTS = [
    "w33",
    "w47",
    "agent",
    "gent-",
    "gent-x1",
    "w1",
    "w",
    "1",
    "STRASSE",
    "straße",
    "ищ",
    "does",
    "nobody",
]


def wanted(noise: random.Random) -> Search:
    choices: dict[str, Any] = {
        "text": " ".join(noise.choices(PARTS, k=noise.choice([1, 1, 2]))),
        "skill": noise.choice(SKILLS),
        "tags": noise.sample(["GEO", "math", "none"], 2),
        "category": noise.choice(["geo", "X1"]),
        "min_trust": noise.randrange(4),
        "max_price": noise.randrange(4),
        "status": noise.choice(["online", "offline"]),
        "viewer": Principal.read(noise.choice(OWNERS)),
        "owner": Principal.read(noise.choice(OWNERS)),
    }
    named = noise.sample(sorted(choices), noise.choice([0, 1, 1, 1, 2, 3]))
    page: dict[str, Any] = {
        "limit": noise.choice([1, 3, 20, 100]),
        "offset": noise.choice([0, 0, 2, 30, 200]),
    }
    if noise.random() < 0.5:
        page["after"] = noise.randrange(4), f"agent-{noise.choice('xyz')}{noise.randrange(200)}"
    return Search(**{name: choices[name] for name in named}, **page)


# A busy machine is not a failure.
@settings(deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0, 3, 50, 120]))
def test_the_index_finds_what_a_look_at_every_agent_finds(seed: int, many: int) -> None:
    noise = random.Random(seed)
    agents = {f"id-{number}": made(number, noise) for number in range(many)}
    index = SearchIndex()
    index.fill(agents.values())
    scores = {f"id-{number}": noise.randrange(3) for number in range(200)}
    for _ in range(40):
        asked = wanted(noise)
        found = index.search(asked, scores.__getitem__)
        assert ([one.id for one in found.agents], found.total) == scanned(agents, asked, scores)
        id = f"id-{noise.randrange(200)}"
        if noise.random() < 0.4:
            assert (index.remove(id) is None) == (agents.pop(id, None) is None)
        else:
            agents[id] = made(int(id[3:]), noise)
            index.put(agents[id])
    assert [one.name for one in index] == sorted(one.name for one in agents.values())
