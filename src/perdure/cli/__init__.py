"""The command line `perdure`. The only place that names concrete stores."""

from perdure.cli._app import main

__all__ = ["main"]
