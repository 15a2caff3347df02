"""``carom completion``: the script that lets a shell complete this command.

Rule: what is printed is for ``eval`` or a file; nothing is installed.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from carom.cli.output import FAILED


@click.command
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash  eval "$(carom completion bash)"     in ~/.bashrc
    zsh   eval "$(carom completion zsh)"      in ~/.zshrc
    fish  carom completion fish > ~/.config/fish/completions/carom.fish
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    found = get_completion_class(shell)
    if found is None:
        ctx.fail(f"no completion for {shell}")
    try:
        script = found(ctx.find_root().command, {}, "carom", "_CAROM_COMPLETE").source()
    except RuntimeError as error:  # its own check of the shell's version
        click.echo(f"carom: {error}", err=True)
        ctx.exit(FAILED)
    click.echo(script)
