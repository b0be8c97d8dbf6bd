"""Certificates of versions: building, comparing and verifying them. Used inside ``registry``."""
