"""Fixtures of training runs, for wired networks."""

from tests.training.conftest import data as data
