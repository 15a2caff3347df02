"""Observers: what happened, told to a log, a metrics system or a tracer. They change nothing."""
