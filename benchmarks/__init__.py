"""The comparisons behind docs/results.md, a module each; ``python -m benchmarks`` runs them.

They need the ``dev`` extra and may import everything; nothing but their tests imports them.
"""
