"""The project folder: where everything lies in it, and writing files whole. Any room may use it."""
