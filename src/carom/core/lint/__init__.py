"""What is unsafe about a RabbitMQ, anybody's, and why: pure functions from what a server has to findings."""

from carom.core.lint.findings import CATALOGUE, Finding, Kind, Level, found, worst
from carom.core.lint.reading import definitions, of_topology
from carom.core.lint.review import review
from carom.core.lint.seen import Facts, Inventory, Policy, Queue, Vhost
from carom.core.lint.server import Needs, QueueFacts, ServerFacts, lint_server
from carom.core.lint.versions import version_of

__all__ = [
    "CATALOGUE",
    "Facts",
    "Finding",
    "Inventory",
    "Kind",
    "Level",
    "Needs",
    "Policy",
    "Queue",
    "QueueFacts",
    "ServerFacts",
    "Vhost",
    "definitions",
    "found",
    "lint_server",
    "of_topology",
    "review",
    "version_of",
    "worst",
]
