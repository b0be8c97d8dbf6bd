from tests.registry.fixtures import _default_store, filled, registered, template, workspace

__all__ = ["_default_store", "filled", "registered", "template", "workspace"]
