"""Calling other agents: references, cards, connections, streams that go on."""
