"""`dragoman completion`: a script for the shell that knows every command and flag.

The script is made from the commands themselves and needs no call of them afterwards.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import click

from dragoman.cli.grammar import PATHS, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.option import Option
from dragoman.cli.options import ROWS

# From the words of a command to what may follow it.
Tree = Mapping[str, list[str]]
# Shown as `<this|that>`: either of them, as it is written.
_CHOICE = re.compile(r"<([\w.-]+(?:\|[\w.-]+)+)>")
_KINDS = {"<time|position>"}
_STATE = "<state>"


@command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish", "powershell"]))
@click.pass_context
def completion(ctx: click.Context, run: Invocation, shell: str) -> None:
    """Print the completion script of a shell.

    bash: source <(dragoman completion bash). fish: dragoman completion fish | source.
    """
    root = ctx.find_root()
    tree = dict(walk(root.command, root, ""))
    values = Values(dict(_own_values(root.command, root, "")), {}, [])
    for row in ROWS:
        flags = [row.flag, *([row.short] if row.short else [])]
        if row.metavar in PATHS:
            values.files.extend(flags)
        if found := _choices(row.metavar) or _MORE.get(row.name):
            values.shared.update(dict.fromkeys(flags, found))
    # Help is asked about a command in its own words.
    for path, words in list(tree.items()):
        tree[f"help {path}".rstrip()] = [word for word in words if f"{path} {word}".strip() in tree]
    run.out.write(_WRITERS[shell](tree, values))


class Values(NamedTuple):
    """What may follow a flag."""

    # By the words of a command and its own flag.
    own: Mapping[str, list[str]]
    # By a flag that every command has.
    shared: dict[str, list[str]]
    # Flags that files follow.
    files: list[str]


# What the flags of every command take, beside those whose help lists it.
_MORE = {"transport": ["jsonrpc", "rest", "grpc"]}


def _choices(metavar: str | None) -> list[str]:
    if not metavar or metavar in PATHS | _KINDS:
        return []
    if metavar == _STATE:
        from dragoman.model.task import TaskState

        return [name.lower().replace("_", "-") for name in TaskState.__members__]
    found = _CHOICE.fullmatch(metavar)
    return found[1].split("|") if found else []


def _own_values(
    subject: click.Command, ctx: click.Context, path: str
) -> Iterator[tuple[str, list[str]]]:
    for parameter in subject.params:
        if not isinstance(parameter, Option) or parameter.row is not None:
            continue
        found = _choices(parameter.metavar)
        if isinstance(parameter.type, click.Choice):
            found = [str(one) for one in parameter.type.choices]
        if found or parameter.metavar in PATHS:
            # Nothing to offer is how files are asked for.
            yield from ((f"{path} {flag}", found) for flag in parameter.opts)
    if isinstance(subject, click.Group):
        for name, child in _children(subject, ctx).items():
            yield from _own_values(child, _inner(child, name, ctx), f"{path} {name}".strip())


def _children(group: click.Group, ctx: click.Context) -> dict[str, click.Command]:
    found = {name: group.get_command(ctx, name) for name in group.list_commands(ctx)}
    return {name: one for name, one in found.items() if one is not None and not one.hidden}


def _inner(child: click.Command, name: str, ctx: click.Context) -> click.Context:
    return child.context_class(child, info_name=name, parent=ctx, **child.context_settings)


def walk(subject: click.Command, ctx: click.Context, path: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command with what may follow it: commands or arguments first, then flags."""
    flags: list[str] = []
    words: list[str] = []
    for parameter in subject.get_params(ctx):
        if isinstance(parameter, click.Option) and not parameter.hidden:
            hidden = parameter.aliases if isinstance(parameter, Option) else ()
            flags += [flag for flag in parameter.opts if flag not in hidden]
        elif isinstance(parameter, click.Argument) and isinstance(parameter.type, click.Choice):
            words += [str(one) for one in parameter.type.choices]
    children = _children(subject, ctx) if isinstance(subject, click.Group) else {}
    yield path, [*children, *words, *sorted(set(flags))]
    for name, child in children.items():
        yield from walk(child, _inner(child, name, ctx), f"{path} {name}".strip())


def _cases(values: Values, offer: str, files: str) -> str:
    """Return the cases of a shell's `case` over a command's words and the flag before."""
    found = [
        f'        "{place}") {offer.format(" ".join(words)) if words else files} ;;'
        for place, words in values.own.items()
    ]
    found += [
        f'        *" {flag}") {offer.format(" ".join(words))} ;;'
        for flag, words in values.shared.items()
    ]
    found += [f'        *" {flag}") {files} ;;' for flag in values.files]
    return "\n".join(found)


def _bash(tree: Tree, values: Values) -> str:
    cases = "\n".join(
        f'        "{path}") words="{" ".join(words)}" ;;' for path, words in tree.items()
    )
    known = "|".join(f'"{path}"' for path in tree if path)
    after = _cases(
        values,
        'COMPREPLY=($(compgen -W "{}" -- "$now")); return',
        'COMPREPLY=($(compgen -f -- "$now")); return',
    )
    return f"""# bash completion for dragoman
_dragoman() {{
    local path="" word words="" now="${{COMP_WORDS[COMP_CWORD]}}" plain=()
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "${{path:+$path }}$word" in
            {known}) path="${{path:+$path }}$word" ;;
        esac
    done
    COMPREPLY=()
    case "$path ${{COMP_WORDS[COMP_CWORD-1]}}" in
{after}
    esac
    case "$path" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$now"))
    # Flags are for those who begin one, where there is anything else.
    for word in "${{COMPREPLY[@]}}"; do [[ $word == -* ]] || plain+=("$word"); done
    if (( ${{#plain[@]}} )); then COMPREPLY=("${{plain[@]}}"); fi
}}
complete -o default -F _dragoman dragoman
"""


def _zsh(tree: Tree, values: Values) -> str:
    cases = "\n".join(
        f'        "{path}") found=({" ".join(words)}) ;;' for path, words in tree.items()
    )
    known = "|".join(f'"{path}"' for path in tree if path)
    after = _cases(values, "compadd -- {}; return", "_files; return")
    return f"""#compdef dragoman
_dragoman() {{
    local trail="" word
    local -a found
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        case "${{trail:+$trail }}$word" in
            {known}) trail="${{trail:+$trail }}$word" ;;
        esac
    done
    case "$trail ${{words[CURRENT-1]}}" in
{after}
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


def _fish(tree: Tree, values: Values) -> str:
    cases = "\n".join(
        f"        case '{path}'\n            printf '%s\\n' {' '.join(words)}"
        for path, words in tree.items()
    )
    known = " ".join(f"'{path}'" for path in tree if path)
    after = [
        f"""complete -c dragoman -n 'test (__dragoman_trail) = "{place}"' {_fish_flag(flag)} """
        + (f"-x -a '{' '.join(words)}'" if words else "-r -F")
        for (place, _, flag), words in (
            (name.rpartition(" "), words) for name, words in values.own.items()
        )
    ]
    after += [
        f"complete -c dragoman {_fish_flag(flag)} -x -a '{' '.join(words)}'"
        for flag, words in values.shared.items()
    ]
    after += [f"complete -c dragoman {_fish_flag(flag)} -r -F" for flag in values.files]
    rules = "\n".join(after)
    return f"""# fish completion for dragoman
function __dragoman_trail
    set -l trail
    set -l words (commandline -opc)
    for word in $words[2..-1]
        set -l longer (string join ' ' -- $trail $word)
        if contains -- "$longer" {known}
            set trail $trail $word
        end
    end
    echo "$trail"
end
function __dragoman_words
    switch (__dragoman_trail)
{cases}
    end
end
complete -c dragoman -f -a '(__dragoman_words)'
{rules}
"""


def _fish_flag(flag: str) -> str:
    return f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"


def _powershell(tree: Tree, values: Values) -> str:
    rows = "\n".join(
        f"        '{path}' = @({', '.join(repr(word) for word in words)})"
        for path, words in tree.items()
    )
    after = "\n".join(
        f"        '{place}' = @({', '.join(repr(word) for word in words)})"
        for place, words in (values.shared | dict(values.own)).items()
        if words
    )
    return f"""# PowerShell completion for dragoman
Register-ArgumentCompleter -Native -CommandName dragoman -ScriptBlock {{
    param($wordToComplete, $commandAst, $cursorPosition)
    $tree = @{{
{rows}
    }}
    $after = @{{
{after}
    }}
    $path = ''
    $before = ''
    foreach ($element in ($commandAst.CommandElements | Select-Object -Skip 1)) {{
        $word = $element.ToString()
        $longer = ($path + ' ' + $word).Trim()
        if ($tree.ContainsKey($longer)) {{ $path = $longer }}
        if ($element.Extent.EndOffset -lt $cursorPosition) {{ $before = $word }}
    }}
    $found = $tree[$path]
    if ($after.ContainsKey($before)) {{ $found = $after[$before] }}
    if ($after.ContainsKey("$path $before")) {{ $found = $after["$path $before"] }}
    $found | Where-Object {{ $_ -like "$wordToComplete*" }} | ForEach-Object {{
        [System.Management.Automation.CompletionResult]::new($_, $_, 'ParameterValue', $_)
    }}
}}
"""


_WRITERS: dict[str, Callable[[Tree, Values], str]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
    "powershell": _powershell,
}
