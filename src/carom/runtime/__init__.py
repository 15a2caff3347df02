"""Everything that waits: the app, its consumers and publisher. Knows core, layouts and ports; never a driver."""
