"""One job in a process of its own: ``python -m bench.worker MODULE FUNCTION JOB``; prints its sample as JSON.

Rule: a process measures one thing once. Nobody's imports, threads or garbage are in anybody else's way.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import sys

import msgspec

from bench.job import Job, Sample


def main(module: str, function: str, text: str) -> None:
    """Do the job and print what it measured."""
    logging.disable(logging.CRITICAL)
    job = msgspec.json.decode(text, type=Job)
    measure = getattr(importlib.import_module(module), function)
    sample: Sample = asyncio.run(measure(job)) if inspect.iscoroutinefunction(measure) else measure(job)
    sys.stdout.buffer.write(sample.to_json() + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
