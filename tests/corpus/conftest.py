"""Kept failures run before anything generated: they are few, and the likeliest to fail again."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [i for i, item in enumerate(items) if "corpus" in item.path.parts]
    ordered = sorted((items[i] for i in mine), key=lambda item: "regressions" not in item.name)
    for index, item in zip(mine, ordered, strict=True):
        items[index] = item
