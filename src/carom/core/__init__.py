"""Decisions as pure functions over values: no await, no clock, no randomness, no third party."""
