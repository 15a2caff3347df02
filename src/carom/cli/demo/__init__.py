"""``carom demo``: a small shop whose orders go wrong in every way, and what becomes of each of them."""
