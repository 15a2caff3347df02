"""A wire between a client and its server that can be held, cut and counted."""

import asyncio
from contextlib import asynccontextmanager, suppress

CHUNK = 65_536


class Wire:
    """A TCP proxy. What flows to the client and what flows to the server can be held apart."""

    def __init__(self, port, host="127.0.0.1"):
        self.target = (host, port)
        self.port = 0
        self.connections = 0
        self.to_client = asyncio.Event()
        self.to_server = asyncio.Event()
        self.to_client.set()
        self.to_server.set()
        self.cut_after = None
        self._writers = set()
        self._tasks = set()

    async def serve(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        self.connections += 1
        with suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(*self.target)
            self._writers |= {writer, far_writer}
            await asyncio.gather(
                self.pump(reader, far_writer, self.to_server), self.pump(far_reader, writer, self.to_client)
            )
        self.reset()

    async def pump(self, reader, writer, flowing):
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                await flowing.wait()
                if self.cut_after is not None and flowing is self.to_client:
                    writer.write(data[: self.cut_after])
                    await writer.drain()
                    self.cut_after = None
                    self.reset()
                    return
                writer.write(data)
                await writer.drain()
        self.reset()

    def reset(self):
        """Cut every connection without a word."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def stall(self, *, to_client=True, to_server=True):
        """Let nothing through, and say nothing."""
        if to_client:
            self.to_client.clear()
        if to_server:
            self.to_server.clear()

    def flow(self):
        """Let everything through again."""
        self.to_client.set()
        self.to_server.set()

    async def close(self):
        self.reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def wired(port, host="127.0.0.1", tls=None):
    """Give a wire to a port; clients connect to its own port, with TLS when there is a context for it."""
    wire = Wire(port, host)
    server = await asyncio.start_server(wire.serve, "127.0.0.1", 0, ssl=tls)
    wire.port = server.sockets[0].getsockname()[1]
    try:
        yield wire
    finally:
        server.close()
        await wire.close()
