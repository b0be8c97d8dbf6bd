"""Certificates of versions: building, chaining and verifying them. Used by ``registry``."""
