"""`dragoman up`: the demo agent, and what to try with it."""

from typing import Any

import click

from dragoman.cli.serve import listening_options

_HINTS = """
The demo agent is up. Try, in another terminal:

  curl {url}/.well-known/agent-card.json

  curl {url}/message:send -H 'content-type: application/json' -d '
    {{"message": {{"messageId": "1", "role": "ROLE_USER", "parts": [{{"text": "hello"}}]}}}}'

  curl -N {url}/message:stream -H 'content-type: application/json' -d '
    {{"message": {{"messageId": "2", "role": "ROLE_USER", "parts": [{{"text": "5"}}],
                 "metadata": {{"skillId": "count"}}}}}}'

  curl {url}/tasks

Tasks are kept in {store}; stop with Ctrl-C, start again, and they are still there.
Next: write your own agent and run `dragoman serve my_agent.py`.
"""


@click.command()
@listening_options
def up(public: bool, **given: Any) -> None:
    """Start the demo agent on a local file and say what to try."""
    from dragoman.server.demo import agent
    from dragoman.server.run import run

    def hints(url: str, store: str) -> None:
        click.echo(_HINTS.format(url=url, store=store))

    run([agent], public=public, given=given, on_ready=hints)
