"""The embedded broker: a topology interpreted in this process, in memory or in one file."""
