"""Measures Dragoman beside other A2A servers, in one run on one machine.

`python -m bench` starts every server, loads them in turn and prints a table; the parts are
`servers` (processes and environments), `wire` (the requests), `calls` and `streams` (the client),
`judging` (is a reply right?), `measures` (what is measured and how) and `report` (the table and the
JSON file).
"""
