"""Taking things away on RabbitMQ, one at a time.

Rule: what is gone already is no error. That it may go, because nothing is in it and nobody uses it, was made sure of
before; only an exchange is asked once more, because only there the server can tell and remove at once.
"""

from __future__ import annotations

from carom.brokers.rabbitmq.channels import NOT_FOUND, PRECONDITION_FAILED, ChannelClosed
from carom.brokers.rabbitmq.declaring import Questions
from carom.core.topology import Binding
from carom.errors import BrokerError, NotPermitted


async def unbind(questions: Questions, binding: Binding) -> None:
    """Remove a binding."""
    method = "queue_unbind" if binding.to == "queue" else "exchange_unbind"
    label = f"the binding of {binding.to} {binding.target!r} to exchange {binding.source!r}"
    await _asked(
        questions,
        label,
        method,
        binding.target,
        binding.source,
        routing_key=binding.key,
        arguments=dict(binding.arguments),
    )


async def remove_queue(questions: Questions, queue: str) -> None:
    """Delete a queue, whatever is in it."""
    await _asked(questions, f"queue {queue!r}", "queue_delete", queue)


async def remove_exchange(questions: Questions, exchange: str) -> bool:
    """Delete an exchange to which nothing is bound; tell whether it is gone."""
    try:
        await _asked(questions, f"exchange {exchange!r}", "exchange_delete", exchange, if_unused=True)
    except BrokerError as error:
        if isinstance(error.__cause__, ChannelClosed) and error.__cause__.code == PRECONDITION_FAILED:
            return False
        raise
    return True


async def _asked(questions: Questions, label: str, method: str, *arguments: object, **options: object) -> None:
    try:
        await questions.ask(method, *arguments, **options)
    except NotPermitted as refused:
        raise NotPermitted(f"{label} may not be removed by this user: {refused}") from refused
    except ChannelClosed as closed:
        if closed.code != NOT_FOUND:
            raise BrokerError(f"{label} cannot be removed: {closed}") from closed
