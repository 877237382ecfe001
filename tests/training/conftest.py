import pytest

from diffsparse.data import DataSet
from tests.training.examples import RUN_MODULE, small_data


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> DataSet:
    """The small data in the place of whatever a recipe names."""
    made = small_data()
    monkeypatch.setattr(RUN_MODULE, "open_data", lambda *_, **__: made)
    return made
