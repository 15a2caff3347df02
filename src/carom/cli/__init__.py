"""The command line: parsing and rendering only. What a command does, it asks the runtime and the ports to do."""

from carom.cli.program import main

__all__ = ["main"]
