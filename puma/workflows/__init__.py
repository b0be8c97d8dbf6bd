"""Whole tasks on registered versions: remove a request, audit, rank suspect labels.

``cli``, ``benchmarks`` and notebooks may import it.
"""
