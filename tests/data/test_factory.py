from pathlib import Path

import pytest

from diffsparse import SparsityError
from diffsparse.data import DataRequest, DataSet, names, open_data, register_data
from diffsparse.data.factory import DATA_SETS
from diffsparse.text.feature import TEXT_NAMES
from diffsparse.traffic.sources import TRAFFIC_NAMES
from tests.data.fakes import SMALL10, SMALL100, write_cifar, write_images

IMAGES = [name for name in names() if name not in (*TRAFFIC_NAMES, *TEXT_NAMES)]


@pytest.fixture(autouse=True)
def _small_and_no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIFFSPARSE_DATA", raising=False)
    monkeypatch.setattr("diffsparse.data.factory._CIFAR", {"cifar10": SMALL10, "cifar100": SMALL100})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Every data set that lies in a root."""
    write_cifar(SMALL10, tmp_path)
    write_cifar(SMALL100, tmp_path)
    for folder in (tmp_path / "imagenet", tmp_path):
        write_images(folder / "train", {"n00000001": 2})
        write_images(folder / "val", {"n00000001": 1})
    return tmp_path


@pytest.mark.parametrize("name", IMAGES)
def test_every_name_opens_the_data_set_of_that_name(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_data(name, root=root)
    assert isinstance(data, DataSet)
    assert data.name == name
    monkeypatch.setenv("DIFFSPARSE_DATA", str(root))
    assert open_data(name).name == name


def test_a_root_given_comes_before_the_variable(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFSPARSE_DATA", "/nowhere")
    assert len(open_data("cifar10", root=root).train) == 30


@pytest.mark.parametrize("name", names())
def test_only_what_is_embedded_needs_no_root(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, ""):
        if value is not None:
            monkeypatch.setenv("DIFFSPARSE_DATA", value)
        if name in ("digits", "synthetic-roads"):
            assert len(open_data(name).train) == {"digits": 1348, "synthetic-roads": 960}[name]
        else:
            with pytest.raises(
                SparsityError, match=f"{name} needs the folder .* give a data root .--data-root. or set DIFFSPARSE_DATA"
            ):
                open_data(name)


def test_wishes_reach_the_data_set(root: Path) -> None:
    assert open_data("imagenet", root=root, image_size=32).input_shape == (3, 32, 32)
    assert open_data("imagenet", root=root, augment=False).train.augment is False
    assert open_data("cifar10", root=root, augment=False).train.augmentation is None
    assert open_data("cifar10", root=root).train.augmentation is not None
    assert open_data("cifar10", root=root, image_size=32).input_shape == (3, 32, 32)


@pytest.mark.parametrize(
    ("name", "wishes", "message"),
    [
        ("mnist", {}, "data set must be one of digits, cifar10, cifar100, imagenet, folder"),
        ("digits", {"image_size": 16}, "digits has images of 8 x 8, got image_size 16"),
        (
            "cifar100",
            {"image_size": 224},
            "cifar100 has images of 32 x 32, or averaged to 16, 8, 4",
        ),
        ("folder", {"image_size": 0}, "image_size must be a whole number of at least 1, got 0"),
        ("imagenet", {"download": True}, "imagenet cannot be downloaded"),
        ("folder", {"download": True}, "folder cannot be downloaded"),
        ("cifar10", {"root": Path("/nowhere")}, "data root /nowhere does not exist"),
        ("folder", {"root": Path(__file__)}, r"test_factory\.py must be a folder, but is a file"),
        ("cifar10", {"root": Path(__file__), "download": True}, "must be a folder, but is a file"),
    ],
)
def test_impossible_wishes_are_refused(name: str, wishes: dict[str, object], message: str, root: Path) -> None:
    with pytest.raises(SparsityError, match=message):
        open_data(name, **{"root": root, **wishes})


def test_a_traffic_data_set_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "sz-taxi-40").mkdir()
    rows = "".join(f"{step},{10 + step % 7},{20 + step % 5}\n" for step in range(200))
    (tmp_path / "sz-taxi-40" / "sz_speed.csv").write_text("date,a,b\n" + rows)
    (tmp_path / "sz-taxi-40" / "sz_adj.csv").write_text("0,1\n1,0\n")
    assert open_data("sz-taxi-40", root=tmp_path).input_shape == (8, 2)
    with pytest.raises(SparsityError, match="cannot be downloaded"):
        open_data("los-loop", root=tmp_path, download=True)
    with pytest.raises(SparsityError, match="has no images"):
        open_data("los-loop", root=tmp_path, image_size=8)


def test_a_registered_data_set_is_opened_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(DATA_SETS, "_things", dict(DATA_SETS.items()))
    asked = []

    def opener(request: DataRequest) -> DataSet:
        asked.append(request)
        return open_data("digits")

    register_data("mine", opener)
    assert "mine" in names()
    assert open_data("mine", root=tmp_path, augment=False, image_size=9, download=True).num_outputs == 10
    assert asked == [DataRequest(name="mine", root=tmp_path, augment=False, image_size=9, download=True)]
    assert asked[0].folder() == tmp_path


@pytest.mark.parametrize(
    ("name", "message"), [("digits", "already a data set called 'digits'"), ("", "non-empty string")]
)
def test_a_name_is_registered_once(name: str, message: str) -> None:
    with pytest.raises(SparsityError, match=message):
        register_data(name, lambda _: open_data("digits"))
