"""Trees of tasks over real processes, each killed: a short run of the proof."""

from pathlib import Path

from proof.crash import tree


async def test_every_tree_comes_to_its_end_and_a_cancel_reaches_its_leaves(tmp_path: Path) -> None:
    result = await tree.prove(3, 1, folder=tmp_path, at_once=2)
    assert result.kept, [row for row in result.rows() if not row.kept]
    assert result.tasks == result.roots * 15 and result.kills == 3
