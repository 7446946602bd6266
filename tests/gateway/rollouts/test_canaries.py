"""Canaries: new versions that do a share of the tasks alone; and how rollouts end, promoted or
rolled back."""

import asyncio
from typing import Any

import pytest
from harness.serving import message, serving
from harness.waiting import eventually, within

from dragoman.errors import InvalidParams, NoAgentAvailable, PermissionDenied, StoreUnavailable
from dragoman.gateway.delivery.forwarding import Forwarding
from dragoman.gateway.registry.registration import AgentChanges, Secret
from dragoman.gateway.rollouts.definition import (
    NewRollout,
    RolloutChange,
    RolloutCounts,
    RolloutRule,
)
from dragoman.gateway.routing.canaries import in_share
from dragoman.model.identity import LOCAL, MessageId, Principal
from dragoman.model.message import Message, Metadata, Part, Role
from dragoman.model.money import MICRO
from dragoman.model.operations import SendMessage
from tests.gateway.gateway_site import Restartable
from tests.gateway.rollouts.greeters import OWNER, Books, Greeter, stage, text_of, versions

pytestmark = pytest.mark.anyio


async def test_a_canary_does_its_share_alone_and_the_order_stays_the_agents(location: str) -> None:
    async with stage(location, price=MICRO) as site:
        id = await site.begin(mode="canary", share=0.5)
        names = [f"n{number}" for number in range(16)]
        tasks = await site.greet(*names)
        chosen = [
            name for name, task in zip(names, tasks, strict=True) if in_share(id, task["id"], 0.5)
        ]
        assert 0 < len(chosen) < len(names)
        assert site.new.told == chosen, "the new version did those tasks"
        assert site.old.told == [name for name in names if name not in chosen], "and it alone"
        figures = await site.figures_when(
            id, lambda one: one.old.tasks + one.new.tasks == len(names)
        )
        assert figures.new.tasks == figures.judged == figures.agreed == len(chosen)
        books = Books(site)
        assert await books.counted(site.agent.id) == (len(names), 0)
        assert await books.counted(site.candidate.id) == (0, 0)
        ledger = site.gateway.ledger.store
        orders = [await ledger.facts(task["id"]) for task in tasks]
        assert {one.order.agent for (one,) in orders} == {site.agent.id}
        assert {one.order.charged for (one,) in orders} == {MICRO}
        await books.check()


async def test_a_shadow_becomes_a_canary_and_a_shadow_again(location: str) -> None:
    async with stage(location) as site:
        id = await site.begin()
        await site.greet("ann")
        await site.figures_when(id, lambda one: one.judged == 1)
        may_answer = asyncio.Event()

        async def slow(text: str, turn: Any) -> str:
            await may_answer.wait()
            return text

        usual, site.new.answer = site.new.answer, slow
        await site.greet("bob")
        await eventually(lambda: site.look_and_tell(site.new, "bob"))
        await site.rollouts.change(id, None, RolloutChange(mode="canary"))
        # The copy that was under way is not waited for, and the figures begin anew.
        assert (await site.found(id)).open == []
        assert (await site.found(id)).figures == RolloutCounts()
        site.new.answer = usual
        may_answer.set()
        await site.greet("cid")
        assert site.old.told == ["ann", "bob"] and site.new.told == ["ann", "bob", "cid"]
        figures = await site.figures_when(id, lambda one: one.judged == 1)
        assert (figures.new.tasks, figures.agreed, figures.old.tasks) == (1, 1, 0)
        may_answer.clear()
        site.new.answer = slow
        task = asyncio.create_task(site.greet("dan"))
        await eventually(lambda: "dan" in site.new.told)
        await site.rollouts.change(id, None, RolloutChange(mode="shadow", share=0.000001))
        may_answer.set()
        await within(task)
        # The new version did it itself, as it was a canary then: there is nothing to compare.
        figures = await site.figures_when(id, lambda one: one.new.tasks == 1)
        assert (figures.judged, figures.old.tasks, (await site.found(id)).open) == (0, 0, [])


async def test_a_change_that_changes_nothing_costs_no_copy() -> None:
    async with stage("memory:") as site:
        may_answer = asyncio.Event()

        async def slow(text: str, turn: Any) -> str:
            await may_answer.wait()
            return f"Good day to you, {text}, and a fine one"

        site.new.answer = slow
        id = await site.begin()
        await site.greet("ann")
        await eventually(lambda: site.look_and_tell(site.new, "ann"))
        await site.rollouts.change(id, None, RolloutChange(mode="shadow", share=0.5))
        may_answer.set()
        figures = await site.figures_when(id, lambda one: one.judged == 1)
        assert (figures.agreed, figures.failed) == (1, 0)


async def test_a_copy_begins_in_a_context_of_its_own() -> None:
    async with stage("memory:") as site:
        seen: dict[str, list[str]] = {"old": [], "new": []}

        def noting(which: str) -> Any:
            def answer(text: str, turn: Any) -> str:
                seen[which].append(turn.message.context_id)
                return text

            return answer

        site.old.answer, site.new.answer = noting("old"), noting("new")
        id = await site.begin()
        first = await site.send_message(message("one"))
        # Its copy has a context at the new version before the next one begins.
        await site.figures_when(id, lambda one: one.judged == 1)
        again = message("two") | {"contextId": first["contextId"]}
        assert (await site.send_message(again))["contextId"] == first["contextId"]
        await site.greet("three")
        figures = await site.figures_when(id, lambda one: one.judged + one.skipped == 3)
        # Nothing that one caller said is in a conversation with what another did; and the new
        # version is not asked to go on with a conversation that it did not have.
        assert (figures.judged, figures.skipped) == (2, 1)
        assert seen["old"][0] == seen["old"][1] != seen["old"][2]
        assert len(seen["new"]) == len({*seen["new"]}) == 2
        assert not {*seen["old"], first["contextId"], id} & {*seen["new"]}


async def test_a_canary_has_only_the_conversations_that_it_began() -> None:
    async with stage("memory:") as site:
        seen: dict[str, list[str]] = {"old": [], "new": []}

        def noting(which: str) -> Any:
            def answer(text: str, turn: Any) -> str:
                seen[which].append(turn.message.context_id)
                return text

            return answer

        site.old.answer, site.new.answer = noting("old"), noting("new")
        first = await site.send_message(message("one"))
        id = await site.begin(mode="canary", share=1.0)
        for text in ("two", "three"):
            await site.send_message(message(text) | {"contextId": first["contextId"]})
        await site.rollouts.change(id, None, RolloutChange(mode="shadow", share=0.5))
        await site.send_message(message("four") | {"contextId": first["contextId"]})
        assert len(seen["old"]) == len(seen["new"]) == 2
        assert len({*seen["old"]}) == len({*seen["new"]}) == 1
        assert not {*seen["old"]} & {*seen["new"]}


async def test_a_task_of_an_agent_with_a_canary_is_on_disk_before_it_is_sent() -> None:
    async with stage("memory:") as site:
        forwarding = Forwarding(site.gateway.delivery)
        sent = Message(MessageId("m"), Role.USER, [Part(text="ann")])
        metadata: Metadata = {"agentId": site.agent.id}
        operation = SendMessage(message=sent, metadata=metadata, wait=True)
        await site.greet("warm up")
        assert forwarding.plan(operation).may_begin_early
        await site.begin(mode="canary", share=0.01)
        assert not forwarding.plan(operation).may_begin_early


async def test_a_canary_that_fails_gives_its_tasks_back_and_is_rolled_back() -> None:
    async with versions() as given, Restartable(given[1].agent) as gone:
        given[1].url = gone.url
        async with stage("memory:", given) as site:
            rule = RolloutRule(least=10, failures=0.05)
            id = await site.begin(mode="canary", rule=rule)
            await gone.stop()
            (task,) = await within(site.greet("ann"))
            assert text_of(task).startswith("Good day") and site.old.told == ["ann"]
            figures = await site.figures_when(id, lambda one: one.new.tasks)
            assert (figures.failed, figures.new.failed, figures.old.tasks) == (1, 1, 0)
            found = await site.ended(id)
            assert (found.state, found.reason) == (
                "rolledBack",
                "by its rule: 1 of 1 tasks failed",
            )
            await site.greet("bob")
            assert site.old.told == ["ann", "bob"]
            assert await Books(site).counted(site.agent.id) == (2, 0)


# Promotion and rollback


async def test_a_version_that_agrees_is_promoted_by_its_rule(location: str) -> None:
    async with stage(location) as site:
        id = await site.begin(rule=RolloutRule(least=3))
        await site.greet("ann", "bob", "cleo")
        await site.figures_when(id, lambda one: one.judged == 3)
        found = await site.ended(id)
        assert (found.state, found.reason) == ("promoted", "by its rule: 3 of 3 answers agree")
        await site.greet("dora")
        assert site.new.told[-1] == "dora" and "dora" not in site.old.told
        agent, candidate = (
            site.gateway.registry.get(one.id) for one in (site.agent, site.candidate)
        )
        assert agent is not None and candidate is not None
        assert (agent.name, agent.url) == (site.agent.name, candidate.url)
        assert agent.card_digest == candidate.card_digest and candidate.is_paused
        assert await Books(site).counted(agent.id) == (4, 0)


async def test_a_promotion_that_was_decided_is_finished_by_the_next_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stage("memory:") as site:
        id = await site.begin()

        async def dies(*_: Any) -> Any:
            raise StoreUnavailable("killed")

        with monkeypatch.context() as broken:
            broken.setattr(site.gateway.registry, "adopt", dies)
            with pytest.raises(StoreUnavailable):
                await site.rollouts.promote(id, OWNER, "now")
        assert (await site.found(id)).state == "promoting"
        assert await site.rollouts.sweep() == 1
        assert (await site.found(id)).state == "promoted"
        agent = site.gateway.registry.get(site.agent.id)
        assert agent is not None and agent.url == site.candidate.url


async def test_a_promoted_version_brings_its_credential() -> None:
    async with versions() as given, stage("memory:", given) as site:
        secret = Secret(kind="bearer", value="of-the-new-one")
        changes = AgentChanges(credential=secret)
        await site.gateway.registry.update(site.candidate.id, changes, OWNER)
        id = await site.begin()
        await site.rollouts.promote(id, OWNER, "now")
        credential = await site.gateway.registry.credential(site.agent.id)
        assert credential == secret.credential()


async def test_a_version_that_is_removed_ends_its_rollout() -> None:
    async with stage("memory:") as site:
        id = await site.begin(mode="canary")
        await site.gateway.registry.remove(site.candidate.id, OWNER)
        (task,) = await site.greet("ann")
        assert text_of(task).startswith("Good day") and site.old.told == ["ann"]
        await site.rollouts.sweep()
        assert (await site.found(id)).state == "rolledBack"


async def test_only_agents_of_one_owner_that_are_safe_to_repeat_are_rolled_out() -> None:
    async with stage("memory:") as site, serving(Greeter("Other").agent) as third:
        foreign = await site.register(third.url, "mallory", repeatable=True)

        async def refused(who: Principal = OWNER, **more: Any) -> Exception:
            given: dict[str, Any] = {
                "agent_id": site.agent.id,
                "candidate_id": site.candidate.id,
            } | more
            with pytest.raises((InvalidParams, PermissionDenied, NoAgentAvailable)) as caught:
                await site.rollouts.create(who, NewRollout(**given))
            return caught.value

        assert "of the same owner" in str(await refused(candidate_id=foreign.id))
        assert "of the same owner" in str(await refused(candidate_id="nobody"))
        assert "of the same owner" in str(await refused(check_agent_id=foreign.id))
        assert "is the agent itself" in str(await refused(candidate_id=site.agent.name))
        assert "safe to repeat" in str(await refused(agent_id=site.candidate.id))
        assert isinstance(await refused(LOCAL, agent_id=foreign.id), PermissionDenied)
        assert isinstance(await refused(agent_id="nobody"), NoAgentAvailable)
        await site.gateway.registry.update(site.candidate.id, AgentChanges(price=1), OWNER)
        assert "costs more" in str(await refused())
        await site.gateway.registry.update(site.candidate.id, AgentChanges(price=0), OWNER)
        await site.begin()
        assert "has a rollout already" in str(await refused())
        paused = site.gateway.registry.get(site.candidate.id)
        assert paused is not None and paused.is_paused, "it gets no other tasks"
