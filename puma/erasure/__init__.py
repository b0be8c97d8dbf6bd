"""Erasing a superseded version for good, and searching every file for its weights afterwards.

Used by ``cli``.
"""
