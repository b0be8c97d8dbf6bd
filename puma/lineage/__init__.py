"""Records of models and audits, and what pipeline stages load and write.

``registry``, the rooms above it and the notebooks may import it. Models and audits are modules of
their own: a change of the audit must not train models again.
"""
