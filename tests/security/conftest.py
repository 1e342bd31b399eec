"""The debug cluster that other tests use, too."""

from tests.debug.conftest import cluster

__all__ = ["cluster"]

collect_ignore_glob = ["programs/*"]  # what attacks and is attacked: importing it would start it
