"""Commands that need all of the package: running graphs, and looking at an installation."""
