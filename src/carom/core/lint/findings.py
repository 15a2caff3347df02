"""Findings, and the catalogue of everything that can be found: its severity, what can happen, how to mend it.

Rule: what is found has a code in the catalogue. The catalogue says what can happen and what to do; the finding says
where, and what is the matter there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """How much it matters. From a warning on something is unsafe."""

    FINE = 0
    NOTE = 1
    WARNING = 2
    ERROR = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: where, what is the matter, what can happen, how to mend it."""

    code: str
    level: Level
    subject: str
    says: str
    risk: str = ""
    do: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """What every finding of one code has in common."""

    level: Level
    risk: str
    do: str


def found(code: str, subject: str, says: str, level: Level | None = None) -> Finding:
    """Return a finding of the catalogue; its severity is the catalogue's unless this one is different."""
    kind = CATALOGUE[code]
    return Finding(code, kind.level if level is None else level, subject, says, kind.risk, kind.do)


def worst(findings: Iterable[Finding]) -> Level:
    """Return the highest level among findings."""
    return max((finding.level for finding in findings), default=Level.FINE)


_NOTE, _WARNING, _ERROR = Level.NOTE, Level.WARNING, Level.ERROR

CATALOGUE: dict[str, Kind] = {
    "ttl-without-dlx": Kind(
        _ERROR,
        "what is not taken in time is deleted, and nothing says so",
        "give the queue a dead letter exchange, or no time to live",
    ),
    "dlx-missing": Kind(
        _ERROR,
        "what is rejected or expires here is deleted; with at-least-once dead lettering it stays for ever",
        "declare the exchange, or name one that exists",
    ),
    "dlx-unbound": Kind(
        _ERROR,
        "what is rejected or expires here reaches no queue: it is deleted, or with at-least-once stays for ever",
        "bind a queue for that key, or give the exchange an alternate exchange",
    ),
    "dlx-cycle": Kind(
        _ERROR,
        "RabbitMQ drops what comes back this way without a rejection, or with at-least-once keeps it for ever",
        "let the queue that consumers read send its dead letters to a queue they stay in; publish retries instead",
    ),
    "dead-letters-at-most-once": Kind(
        _WARNING,
        "a dead letter is published without a confirm: when the target or its leader is away at that moment it is gone",
        "use a quorum queue with x-dead-letter-strategy=at-least-once and x-overflow=reject-publish",
    ),
    "at-least-once-downgraded": Kind(
        _ERROR,
        "RabbitMQ falls back to at-most-once and only its log says so; a switch deletes the dead letters that wait",
        "make x-overflow=reject-publish effective, on a quorum queue; before 3.12 with the feature flag stream_queue",
    ),
    "at-least-once-pins": Kind(
        _WARNING,
        "32 messages whose key finds no queue stop this queue for everybody who shares it",
        "send its dead letters to a named exchange that has an alternate exchange",
    ),
    "retry-fans-out": Kind(
        _ERROR,
        "every one of these queues gets a copy of each retry, also those that had succeeded, and multiplies it again",
        "return a retry to the queue that failed: a direct exchange, or the default one, with the queue's name as key",
    ),
    "per-message-ttl": Kind(
        _WARNING,
        "messages expire at the head of a queue alone: one that waits long blocks all that are due sooner",
        "give each delay a queue of its own with x-message-ttl",
    ),
    "delay-by-policy": Kind(
        _WARNING,
        "another policy of higher priority takes the delay away: what waits then waits for ever, or is lost",
        "set the time to live and the dead letter exchange of a delay queue as arguments",
    ),
    "delay-expires": Kind(
        _ERROR,
        "the queue is deleted with everything that waits in it; a quorum queue counts from its creation, used or not",
        "remove x-expires; delete unused delay queues when they are empty",
    ),
    "delay-drops": Kind(
        _ERROR,
        "when it is full its oldest messages leave at once: retries without a delay, just when everything fails",
        "remove the limit, or set overflow to reject-publish",
    ),
    "delay-consumed": Kind(
        _WARNING,
        "what a consumer holds does not expire: retries come back late, or never",
        "stop that consumer; nobody reads a delay queue",
    ),
    "dlq-expires": Kind(
        _ERROR,
        "failed messages are deleted before somebody has looked at them",
        "take the dead letter queue out of that policy, or remove the argument",
    ),
    "dlq-drops": Kind(
        _ERROR,
        "when it is full the oldest failed messages are deleted",
        "remove the limit, or set overflow to reject-publish and watch the depth",
    ),
    "dlq-peeked-away": Kind(
        _WARNING,
        "every look at a dead letter counts as a delivery: a browser of queues deletes what it looks at too often",
        "set x-delivery-limit to something that is never reached, such as 1000000",
    ),
    "consumed-without-ack": Kind(
        _WARNING,
        "a message is forgotten when it is sent: what the consumer had in hand when it stops is lost",
        "consume with acknowledgements",
    ),
    "work-without-dlx": Kind(
        _WARNING,
        "a consumer that rejects a message deletes it",
        "give the queue a dead letter exchange",
    ),
    "limit-without-dlx": Kind(
        _ERROR,
        "a message that came back that often, also because workers stopped, is deleted",
        "give the queue a dead letter exchange",
    ),
    "unlimited-redelivery": Kind(
        _WARNING,
        "a message that kills its consumer comes back for ever, and takes down one worker after another",
        "use a quorum queue with x-delivery-limit and a dead letter exchange",
    ),
    "work-drops": Kind(
        _WARNING,
        "when it is full the oldest messages are deleted, or end as dead letters unhandled",
        "set overflow to reject-publish, so that publishers know",
    ),
    "work-expires": Kind(
        _NOTE,
        "what nobody handles in time ends among the failures, though nothing failed",
        "leave it if that is meant",
    ),
    "policy-shadowed": Kind(
        _WARNING,
        "only one policy applies to a queue: what the other one was to see to is not done there",
        "put both definitions into the policy of higher priority",
    ),
    "policy-tie": Kind(
        _WARNING,
        "which of them applies is not defined, and can change with a restart",
        "give them different priorities",
    ),
    "policy-not-applied": Kind(
        _WARNING,
        "a policy with a key that this kind of queue does not have is ignored there as a whole",
        "write one policy for each kind of queue",
    ),
    "policy-unreadable": Kind(
        _WARNING,
        "whether it applies could not be told, so nothing that it changes was looked at",
        "write a simpler pattern",
    ),
    "policy-overrides": Kind(
        _WARNING,
        "the queue does something else than its declaration says",
        "leave the queue out of the policy's pattern",
    ),
    "policy-ignored": Kind(
        _NOTE,
        "the argument wins, so the policy changes nothing here",
        "remove the argument or the key",
    ),
    "mirrored": Kind(
        _WARNING,
        "mirrored queues lose confirmed messages in partitions; RabbitMQ 4.0 has none, the queue is on one node then",
        "use quorum queues",
    ),
    "transient-queue": Kind(
        _WARNING,
        "the queue and what is in it are gone when its node restarts; RabbitMQ 4.3 refuses it",
        "make it durable, or exclusive to a connection",
    ),
    "auto-delete-queue": Kind(
        _WARNING,
        "the queue and what is in it are deleted when its last consumer goes",
        "make it a queue that stays",
    ),
    "quorum-refused": Kind(
        _ERROR,
        "RabbitMQ refuses to declare it, and an import leaves it out",
        "make the quorum queue durable, neither exclusive nor deleted automatically",
    ),
    "argument-refused": Kind(
        _ERROR,
        "RabbitMQ refuses to declare the queue: who declares it at its start does not start, an import leaves it out",
        "remove the argument",
    ),
    "argument-ignored": Kind(
        _ERROR,
        "the server keeps the argument and does not know it: the queue looks right and does something else",
        "remove the argument, or upgrade",
    ),
    "delayed-exchange": Kind(
        _WARNING,
        "what waits is one copy on one node, published once and without a confirm; RabbitMQ 4.3 has no such plugin",
        "delay in quorum queues, one for each delay",
    ),
    "server-too-old": Kind(_ERROR, "quorum queues neither expire messages nor dead-letter them safely", "upgrade it"),
    "server-alarmed": Kind(
        _ERROR,
        "nothing can be published, retries neither",
        "free memory or disk on it, or raise its limits; publishing goes on by itself then",
    ),
    "not-consumed": Kind(_WARNING, "nothing happens to them", "start a worker"),
    "outlives-patience": Kind(
        _WARNING,
        "a broker takes a message back after 30m by default, while its handler runs",
        "shorten the timeout, or raise consumer_timeout on the broker",
    ),
    "kept": Kind(_NOTE, "nothing, until somebody looks", "look at their reasons and send them again"),
    "not-asked": Kind(
        _NOTE,
        "policies and bindings were not looked at",
        "give its address with ?management=http://host:15672 in the broker's URL",
    ),
    "not-as-declared": Kind(
        _ERROR,
        "the app does not find what it needs",
        "run 'carom topology apply'; what is there and different it leaves alone, and says what can be done",
    ),
    "not-permitted": Kind(
        _ERROR,
        "the app cannot do its work",
        "grant it with 'rabbitmqctl set_permissions'; 'carom topology grants' prints what each role needs",
    ),
    "mixed-versions": Kind(
        _WARNING,
        "a queue may be put on any node, and does what that node's version does",
        "finish the upgrade; until then only what all of them understand is declared",
    ),
    "fine": Kind(Level.FINE, "", ""),
}
