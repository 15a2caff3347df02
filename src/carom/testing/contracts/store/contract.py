"""StoreContract: what every implementation of `carom.ports.Store` does, in one class.

Rule: this only gathers; each claim stands in the module of its subject.
"""

from __future__ import annotations

from carom.testing.contracts.store.admitting import Admitting
from carom.testing.contracts.store.emitting import Emitting
from carom.testing.contracts.store.failing import Failing
from carom.testing.contracts.store.leading import Leading
from carom.testing.contracts.store.opening import Opening
from carom.testing.contracts.store.relaying import Relaying
from carom.testing.contracts.store.tending import Tending
from carom.testing.contracts.store.waiting import Waiting


class StoreContract(Opening, Emitting, Relaying, Leading, Waiting, Tending, Admitting, Failing):
    """Subclass it as ``class TestMyStore(StoreContract)``; `stage.StoreStage` lists the hooks and the knobs.

    Every test is one promise, its name a sentence. A store that cannot keep one is not a store for Carom: it may lose
    messages, publish what was rolled back, or have them handled twice.
    """
