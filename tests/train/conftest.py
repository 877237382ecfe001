import importlib

import pytest

from diffsparse.data import DataSet
from tests.train.examples import small_data


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> DataSet:
    """The small data in the place of whatever a recipe names."""
    made = small_data()
    # by import_module: the package has a function of the same name
    monkeypatch.setattr(importlib.import_module("diffsparse.train.run"), "open_data", lambda *_, **__: made)
    return made
