"""The `dragoman` command. Heavy imports happen inside the commands, so that help is instant."""

import sys

import click

from dragoman.cli.backup import backup
from dragoman.cli.doctor import doctor
from dragoman.cli.proof import proof
from dragoman.cli.push import push
from dragoman.cli.serve import serve
from dragoman.cli.up import up
from dragoman.errors import ConfigError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(None, "-v", "--version", package_name="dragoman")
def cli() -> None:
    """Serve, call and carry A2A agents; every task is kept."""


cli.add_command(serve)
cli.add_command(up)
cli.add_command(proof)
cli.add_command(push)
cli.add_command(doctor)
cli.add_command(backup)


def main() -> None:
    """Run the command; what is wrong with the settings is a sentence, not a traceback."""
    try:
        cli()
    except ConfigError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)
