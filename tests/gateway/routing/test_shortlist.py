"""Who comes into question, among few and among many."""

from msgspec.structs import replace

from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.routing.shortlist import ENOUGH, Shortlist
from dragoman.model.card import AgentSkill


def agent(number: int, description: str = "", skill: str = "work", **more: object) -> Registered:
    skills = [AgentSkill(id=skill, name=skill, description="", tags=[])]
    made = Registered(
        id=f"id-{number}",
        name=f"agent-{number}",
        title=f"Agent {number}",
        url=f"https://agent-{number}.example.com/",
        description=description,
        skills=skills,
    )
    return replace(made, **more)


def listed(*agents: Registered) -> Shortlist:
    found = Shortlist()
    found.fill(agents)
    return found


def equal(id: str) -> int:
    return 50


def test_a_skill_leads_to_all_that_have_it() -> None:
    many = listed(agent(1, skill="sing"), agent(2, skill="dance"), agent(3, skill="sing"))
    assert many.with_skill("sing") == ["id-1", "id-3"]
    assert many.with_skill("cook") == []


def test_a_text_leads_to_all_that_share_a_word_and_to_the_default() -> None:
    many = listed(
        agent(1, "Translates French"), agent(2, "Cooks"), agent(3, "Anything", is_default=True)
    )
    assert many.for_text("Please translate into french!", equal) == ["id-1", "id-3"]
    assert many.for_text("", equal) == ["id-3"]


def test_what_many_have_in_common_gives_way_to_what_is_rare() -> None:
    crowd = [agent(number, "Plans journeys") for number in range(ENOUGH + 50)]
    one = agent(9_999, "Plans journeys to Samarkand")
    many = listed(*crowd, one)
    assert many.for_text("journeys to Samarkand", equal) == ["id-9999"]


def test_of_many_that_are_alike_the_trusted_come_into_question() -> None:
    crowd = [agent(number, "Plans journeys") for number in range(ENOUGH + 50)]
    found = listed(*crowd).for_text("journeys", lambda id: int(id.removeprefix("id-")))
    assert len(found) == ENOUGH and "id-0" not in found and f"id-{ENOUGH + 49}" in found


def test_few_agents_are_never_left_out() -> None:
    few = [agent(number, "Plans journeys") for number in range(ENOUGH)]
    assert len(listed(*few).for_text("journeys to Samarkand", equal)) == ENOUGH


def test_an_agent_that_describes_itself_otherwise_is_found_otherwise() -> None:
    many = listed(agent(1, "Cooks", skill="cook"))
    many.note(agent(1, "Sings", skill="sing"))
    assert many.for_text("cooks", equal) == [] and many.with_skill("cook") == []
    assert many.for_text("sings", equal) == many.with_skill("sing") == ["id-1"]


def test_an_agent_that_was_removed_is_found_no_more() -> None:
    many = listed(agent(1, "Cooks", is_default=True), agent(2, "Cooks"))
    many.drop("id-1")
    many.drop("id-1")
    assert many.for_text("cooks", equal) == ["id-2"] == many.with_skill("work")


def test_how_an_agent_is_seen_changes_nothing() -> None:
    first = agent(1, "Cooks")
    many = listed(first)
    many.note(replace(first, status="offline"))
    assert many.for_text("cooks", equal) == ["id-1"]
