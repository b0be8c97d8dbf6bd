"""Erasing a superseded version for good: what is its, what goes, and a search for its weights.

Used by ``cli``.
"""
