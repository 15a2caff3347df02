"""Benchmarks: how fast Carom is, beside the limit of its client library and beside what else one could use."""
