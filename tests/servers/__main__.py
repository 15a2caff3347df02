"""See to it that the servers of the tests can be had: ``python -m tests.servers``.

Rule: says nothing when all is well.
"""

from .programs import main

main()
