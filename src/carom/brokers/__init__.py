"""Adapters to message brokers. They know ports and core only, and never each other."""
