"""Carom: reliable messaging for Python on RabbitMQ and SQL databases.

from carom import App

app = App("embedded://")

@app.listen("order.created", retry=("2s", "5s", "15s"))
async def charge(order: dict) -> None: ...
"""

from carom.core.message import Message
from carom.core.retry import RetryPolicy
from carom.errors import (
    BatchFailure,
    BrokerError,
    BrokerUnavailable,
    CaromError,
    ConfigurationError,
    DatabaseUnavailable,
    DecodeError,
    Discard,
    HandlerTimeout,
    NotConfirmed,
    NotPermitted,
    Reject,
    Retry,
    SchemaMismatch,
    TopologyError,
    TopologyMismatch,
    Unroutable,
)
from carom.ports import Database
from carom.runtime.app import App
from carom.runtime.publisher import Emit

__all__ = [
    "App",
    "BatchFailure",
    "BrokerError",
    "BrokerUnavailable",
    "CaromError",
    "ConfigurationError",
    "Database",
    "DatabaseUnavailable",
    "DecodeError",
    "Discard",
    "Emit",
    "HandlerTimeout",
    "Message",
    "NotConfirmed",
    "NotPermitted",
    "Reject",
    "Retry",
    "RetryPolicy",
    "SchemaMismatch",
    "TopologyError",
    "TopologyMismatch",
    "Unroutable",
]
