"""Whole tasks on registered versions: remove a request, audit, rank suspect labels.

Used by ``cli`` and notebooks.
"""
