"""How retries are laid out on a broker: one module a layout, its topology and its wire. Pure."""
