"""Django's migrations of Carom's tables.

Rule: one that was released is never changed.
"""
