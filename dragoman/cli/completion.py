"""`dragoman completion`: a script for the shell that knows every command and flag.

The script is made from the commands themselves and asks nobody afterwards.
"""

from collections.abc import Callable, Iterator, Mapping

import click

from dragoman.cli.grammar import Option, command
from dragoman.cli.invocation import Invocation

# From the words of a command to what may follow it.
Tree = Mapping[str, list[str]]


@command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish", "powershell"]))
@click.pass_context
def completion(ctx: click.Context, run: Invocation, shell: str) -> None:
    """Print the completion script of a SHELL.

    bash: source <(dragoman completion bash). fish: dragoman completion fish | source.
    """
    root = ctx.find_root()
    tree = dict(walk(root.command, root, ""))
    run.out.write(_WRITERS[shell](tree))


def walk(subject: click.Command, ctx: click.Context, path: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command with what may follow it: its own commands first, then its flags."""
    flags: list[str] = []
    for parameter in subject.get_params(ctx):
        if isinstance(parameter, click.Option) and not parameter.hidden:
            hidden = parameter.aliases if isinstance(parameter, Option) else ()
            flags += [flag for flag in parameter.opts if flag not in hidden]
    children: dict[str, click.Command] = {}
    if isinstance(subject, click.Group):
        for name in subject.list_commands(ctx):
            found = subject.get_command(ctx, name)
            if found is not None and not found.hidden:
                children[name] = found
    yield path, [*children, *sorted(set(flags))]
    for name, child in children.items():
        inner = child.context_class(child, info_name=name, parent=ctx, **child.context_settings)
        yield from walk(child, inner, f"{path} {name}".strip())


def _bash(tree: Tree) -> str:
    cases = "\n".join(
        f'        "{path}") words="{" ".join(words)}" ;;' for path, words in tree.items()
    )
    known = "|".join(f'"{path}"' for path in tree if path)
    return f"""# bash completion for dragoman
_dragoman() {{
    local path="" word words=""
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "${{path:+$path }}$word" in
            {known}) path="${{path:+$path }}$word" ;;
        esac
    done
    case "${{COMP_WORDS[COMP_CWORD-1]}}" in
        -o|--output)
            COMPREPLY=($(compgen -W "text json" -- "${{COMP_WORDS[COMP_CWORD]}}")); return ;;
        --file|--config|--client-cert|--client-key|--ca-cert|--keys|--output-dir|--data)
            COMPREPLY=($(compgen -f -- "${{COMP_WORDS[COMP_CWORD]}}")); return ;;
    esac
    case "$path" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _dragoman dragoman
"""


def _zsh(tree: Tree) -> str:
    cases = "\n".join(
        f'        "{path}") found=({" ".join(words)}) ;;' for path, words in tree.items()
    )
    known = "|".join(f'"{path}"' for path in tree if path)
    return f"""#compdef dragoman
_dragoman() {{
    local trail="" word
    local -a found
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        case "${{trail:+$trail }}$word" in
            {known}) trail="${{trail:+$trail }}$word" ;;
        esac
    done
    case "${{words[CURRENT-1]}}" in
        -o|--output) compadd -- text json; return ;;
        --file|--config|--client-cert|--client-key|--ca-cert|--keys|--output-dir|--data)
            _files; return ;;
    esac
    case "$trail" in
{cases}
    esac
    compadd -- $found
}}
if [ "$funcstack[1]" = "_dragoman" ]; then
    _dragoman "$@"
else
    compdef _dragoman dragoman
fi
"""


def _fish(tree: Tree) -> str:
    cases = "\n".join(
        f"        case '{path}'\n            printf '%s\\n' {' '.join(words)}"
        for path, words in tree.items()
    )
    known = " ".join(f"'{path}'" for path in tree if path)
    return f"""# fish completion for dragoman
function __dragoman_words
    set -l trail
    set -l words (commandline -opc)
    for word in $words[2..-1]
        set -l longer (string join ' ' -- $trail $word)
        if contains -- "$longer" {known}
            set trail $trail $word
        end
    end
    switch (string join ' ' -- $trail)
{cases}
    end
end
complete -c dragoman -f -a '(__dragoman_words)'
complete -c dragoman -s o -l output -x -a 'text json'
complete -c dragoman -l file -r -F
complete -c dragoman -l config -r -F
"""


def _powershell(tree: Tree) -> str:
    rows = "\n".join(
        f"        '{path}' = @({', '.join(repr(word) for word in words)})"
        for path, words in tree.items()
    )
    return f"""# PowerShell completion for dragoman
Register-ArgumentCompleter -Native -CommandName dragoman -ScriptBlock {{
    param($wordToComplete, $commandAst, $cursorPosition)
    $tree = @{{
{rows}
    }}
    $path = ''
    foreach ($element in ($commandAst.CommandElements | Select-Object -Skip 1)) {{
        $longer = ($path + ' ' + $element.ToString()).Trim()
        if ($tree.ContainsKey($longer)) {{ $path = $longer }}
    }}
    $tree[$path] | Where-Object {{ $_ -like "$wordToComplete*" }} | ForEach-Object {{
        [System.Management.Automation.CompletionResult]::new($_, $_, 'ParameterValue', $_)
    }}
}}
"""


_WRITERS: dict[str, Callable[[Tree], str]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
    "powershell": _powershell,
}
