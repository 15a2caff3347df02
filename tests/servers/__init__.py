"""Real servers for the tests: a RabbitMQ and a PostgreSQL, started privately from the system's programs or in Docker,
or servers that exist.

    programs.py    finds the programs, installs them where that is allowed, or says what to install
    watchdog.py    the process that owns the servers, and ends them however the tests end
    keeper.py      the other end of its pipe
    server.py      what the servers have in common: starting, waiting until one answers, killing, restarting
    rabbitmq.py, postgres.py    the two servers
    containers.py  a server in Docker
    existing.py    a RabbitMQ that somebody else runs, and a vhost on it
    management.py  RabbitMQ's management API, as far as it is needed here
    fixtures.py    the pytest plugin

Rule: who asks for no server starts none and waits for none, and what was started is gone when the run is over.
"""
