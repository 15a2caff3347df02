"""Commands of ``manage.py``.

Rule: Django looks for them here, by the names of the modules.
"""
