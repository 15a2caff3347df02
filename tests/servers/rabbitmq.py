"""A private RabbitMQ node, with everything of its own: ports, Erlang cookie, port mapper, data, configuration, vhost.

Rule: it shares nothing with a RabbitMQ that runs here already and reads none of its configuration, and it listens on
the loopback alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from uuid import uuid4

import pika

from .containers import PATIENCE_SECONDS, Container
from .keeper import Keeper
from .management import Management
from .programs import RABBITMQ, search_path, source
from .server import HOST, Recipe, Server, converse, free_port

GREETING = b"AMQP\x00\x00\x09\x01"
CTL_SECONDS = 60
ALARM_WATERMARK, USUAL_WATERMARK = "0", "0.4"
# One scheduler is enough for tests, and leaves them the other core of a small machine.
ERLANG = "+S 1:1 +SDcpu 1:1 +SDio 4 +A 4"
LOOPBACK = "-kernel inet_dist_use_interface {127,0,0,1}"


PINNED_RETRY_MS = 2_000
"""When our own node tries a dead letter again that it could not place; by default after three minutes."""
ADVANCED = f"[{{rabbit, [{{dead_letter_worker_publisher_confirm_timeout, {PINNED_RETRY_MS}}}]}}].\n"


class CtlFailed(Exception):
    """rabbitmqctl did not do what it was asked; the message has what it said."""


class Rabbit(Server):
    """A RabbitMQ node from the system's programs. `heal` undoes what a test did to it."""

    name = "rabbitmq"

    def __init__(self, keeper: Keeper, programs: Path) -> None:
        super().__init__(keeper)
        self.programs = programs
        self.vhost = f"run-{uuid4().hex[:12]}"
        self.management_port = 0
        self._port_mapper = 0
        self._distribution = 0
        self._mapping = False
        self._stopped = False
        self._alarmed = False

    # --- where it is

    @property
    def url(self) -> str:
        """Where the vhost of this run is."""
        return f"amqp://guest:guest@{HOST}:{self.port}/{self.vhost}"

    @property
    def management_url(self) -> str:
        """Where its management API is."""
        return f"http://{HOST}:{self.management_port}"

    @property
    def management(self) -> Management:
        """Its management API."""
        return Management(self.management_url, "guest", "guest")

    # --- how it is started

    def prepare(self) -> None:
        if self._mapping:
            self.keeper.ask("kill", "epmd")
        self.port, self.management_port, self._port_mapper, self._distribution = (free_port() for _ in range(4))
        self.folder.mkdir(mode=0o700, exist_ok=True)
        (self.folder / "plugins").write_text("[rabbitmq_management].\n", encoding="utf-8")
        configuration = {
            "default_vhost": self.vhost,
            "management.tcp.ip": HOST,
            "management.tcp.port": self.management_port,
        }
        lines = [f"{key} = {value}\n" for key, value in configuration.items()]
        (self.folder / "rabbitmq.conf").write_text("".join(lines), encoding="utf-8")
        (self.folder / "advanced.config").write_text(ADVANCED, encoding="utf-8")

    def recipe(self) -> Recipe:
        return Recipe([str(self.programs / "rabbitmq-server")], self._environment())

    def start(self) -> None:
        if self.port == 0:
            self.prepare()
        self._map_ports()
        super().start()

    def _map_ports(self) -> None:
        """See to it that Erlang's port mapper runs, in the foreground: one that a node starts would outlive it."""
        if self._mapping and self.keeper.ask("exited", "epmd") is None:
            return
        command = ["epmd", "-port", str(self._port_mapper), "-address", HOST]
        self.keeper.ask("start", "epmd", command, self._environment(), None, int(signal.SIGKILL))
        self._mapping = True

    def _environment(self) -> dict[str, str]:
        folder = self.folder
        given = {
            "NODENAME": f"carom-{self.port}@localhost",
            "NODE_IP_ADDRESS": HOST,
            "NODE_PORT": self.port,
            "DIST_PORT": self._distribution,
            "MNESIA_BASE": folder / "data",
            "LOG_BASE": folder / "log",
            "LOGS": "-",
            "PID_FILE": folder / "pid",
            "ENABLED_PLUGINS_FILE": folder / "plugins",
            "CONFIG_FILE": folder / "rabbitmq.conf",
            "ADVANCED_CONFIG_FILE": folder / "advanced.config",
            "CONF_ENV_FILE": os.devnull,
            "SERVER_ADDITIONAL_ERL_ARGS": ERLANG,
            "CTL_ERL_ARGS": LOOPBACK,
            # "Allow input" makes its script become the node instead of waiting beside it; there is no input.
            "ALLOW_INPUT": 1,
            "SERVER_START_ARGS": f"-noinput -start_epmd false {LOOPBACK}",
        }
        environment = {f"RABBITMQ_{key}": str(value) for key, value in given.items()}
        environment |= {"ERL_EPMD_PORT": str(self._port_mapper), "ERL_EPMD_ADDRESS": HOST}
        # The Erlang cookie is kept in HOME.
        return {**environment, "HOME": str(folder), "PATH": search_path(), "LANG": "C.UTF-8"}

    def answers(self) -> bool:
        """Greet it: its listeners open last, and answer with a frame on channel 0."""
        return converse(self.port, GREETING, 1) == b"\x01"

    # --- what tests do to it

    def ctl(self, *command: str) -> str:
        """Run rabbitmqctl on this node and return what it said. Takes about a second. Raises CtlFailed."""
        arguments, environment = self._ctl(*command)
        done = subprocess.run(
            arguments, check=False, env=environment, capture_output=True, text=True, timeout=CTL_SECONDS
        )
        if done.returncode != 0:
            raise CtlFailed(
                f"rabbitmqctl {' '.join(command)} exited with {done.returncode}: {done.stdout}{done.stderr}"
            )
        return done.stdout

    def _ctl(self, *command: str) -> tuple[list[str], dict[str, str]]:
        return [str(self.programs / "rabbitmqctl"), "--quiet", *command], self._environment()

    def stop_app(self) -> None:
        """Stop RabbitMQ inside its running node, as an administrator does: connections are closed by the server."""
        self._stopped = True
        self.ctl("stop_app")

    def start_app(self) -> None:
        """Start it again; returns when it answers."""
        self.ctl("start_app")
        self._stopped = False

    def raise_memory_alarm(self) -> None:
        """Let it believe that it has no memory left: it stops reading from connections that publish."""
        self._alarmed = True
        self.ctl("set_vm_memory_high_watermark", ALARM_WATERMARK)

    def clear_memory_alarm(self) -> None:
        """Let it believe again what is true."""
        self.ctl("set_vm_memory_high_watermark", USUAL_WATERMARK)
        self._alarmed = False

    def close_connections(self, reason: str = "closed by a test") -> None:
        """Close every connection to the vhost of this run from the server's side."""
        self.ctl("close_all_connections", "--vhost", self.vhost, reason)

    def delete_queue(self, queue: str) -> None:
        """Delete a queue of this run's vhost and what is in it, whoever consumes it."""
        with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
            connection.channel().queue_delete(queue)

    def remember_queues(self) -> None:
        """Have it write down now which quorum queues it has, instead of within half a second.

        A quorum queue that is younger when its node is killed comes back without its messages, confirmed or not, and
        without a leader, for good (seen with 3.10.8). Nobody can do anything about that from outside, so a test that
        kills a node in which it has just declared queues calls this first.
        """
        self.ctl("eval", "[ok = dets:sync(Table) || Table <- dets:all()].")

    def kill(self) -> None:
        """Kill it, which ends a memory alarm and a stopped application too. See `remember_queues`."""
        super().kill()
        self._stopped = self._alarmed = False

    def heal(self) -> None:
        super().heal()
        if self._stopped:
            self.start_app()
        if self._alarmed:
            self.clear_memory_alarm()


class DockerRabbit(Rabbit):
    """A RabbitMQ in a container."""

    patience_s = PATIENCE_SECONDS

    def __init__(self, keeper: Keeper, docker: str) -> None:
        super().__init__(keeper, Path(docker).parent)
        self.container = Container(keeper, docker, RABBITMQ.image)

    def prepare(self) -> None:
        self.container.remove()
        self.port, self.management_port = free_port(), free_port()

    def recipe(self) -> Recipe:
        ports = {self.port: 5672, self.management_port: 15672}
        return self.container.recipe(ports, {"RABBITMQ_DEFAULT_VHOST": self.vhost})

    def kill(self) -> None:
        self.container.kill()
        super().kill()

    def _map_ports(self) -> None:
        """A container has a port mapper of its own."""

    def _ctl(self, *command: str) -> tuple[list[str], dict[str, str]]:
        return self.container.inside("rabbitmqctl", "--quiet", *command), self.container.environment


def rabbitmq(keeper: Keeper) -> Rabbit:
    """Return a RabbitMQ that can be started here. Raises Missing."""
    found = source(RABBITMQ)
    return Rabbit(keeper, found) if isinstance(found, Path) else DockerRabbit(keeper, found)
