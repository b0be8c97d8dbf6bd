"""Records of models and audits, and what pipeline stages load and write.

Used by ``registry`` and the rooms above it, and by notebooks. Models and audits are kept in
modules of their own: a change of the audit must not train models again.
"""
