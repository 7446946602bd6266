"""Recorded conversations with an agent: record by a proxy, replay, compare with a live agent.

`cassette.py` is the file format, `recorder.py` the proxy, `replayer.py` the server of a recording,
`comparison.py` the test of a live agent; `redaction.py` removes secrets. Begin with `cassette.py`.
"""
