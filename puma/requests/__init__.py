"""Deletion requests: who is to be removed, which rows that is, and whom earlier requests removed.

Used by every room above ``data``.
"""
