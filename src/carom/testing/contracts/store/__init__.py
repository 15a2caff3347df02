"""The contract of stores, by subject. `carom.testing.contracts.StoreContract` is all of it."""

from __future__ import annotations

import pytest

for _room in ("stage", "emitting", "relaying", "leading", "waiting", "tending", "admitting", "failing", "opening"):
    pytest.register_assert_rewrite(f"{__name__}.{_room}")
