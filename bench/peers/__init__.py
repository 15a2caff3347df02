"""What Carom is measured against: one module for each, with a function for each benchmark it takes part in."""
