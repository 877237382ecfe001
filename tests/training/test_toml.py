import tomllib
from pathlib import Path

import pytest

from diffsparse import SparsityError
from diffsparse.training import Distillation, Hardware, Optimisation, Recipe, Sparsifying, read_recipe, to_toml

FULL = Recipe(
    model="package.module:Net",
    arguments='{"name": "a \\"b\\" \\\\ c", "size": 3}',
    data="folder",
    data_root=Path("daten/möbel \U0001f600"),
    download=True,
    image_size=64,
    augment=False,
    epochs=7,
    batch_size=12,
    seed=5,
    optimisation=Optimisation(
        optimizer="adam",
        learning_rate=1e-05,
        gate_rate=2.0,
        momentum=0.85,
        nesterov=False,
        weight_decay=1e16,
        gate_weight_decay=0.1,
        schedule="steps",
        milestones=(0.1, 0.2, 1.0),
        factor=0.5,
        warmup_epochs=2.5,
        label_smoothing=0.1,
        clip=1.0,
        accumulate=3,
        ema=0.999,
    ),
    sparsifying=Sparsifying(
        method="scratch",
        strength=3e-4,
        norm="l21",
        group_size=4,
        settle_epochs=0.25,
        delay_epochs=0.5,
        ramp_epochs=1.5,
        start=1.0,
        rgf=0.1,
        target=0.5,
        target_macs=0.25,
        retrain_epochs=9,
        like=Path("a/b.safetensors"),
    ),
    distillation=Distillation(teacher="train", teacher_model="resnet50", teacher_epochs=3, alpha=0.5, temperature=2.0),
    hardware=Hardware(
        device="cpu", precision="bfloat16", channels_last=True, compile=True, sync_batchnorm=True, threads=2
    ),
)


@pytest.mark.parametrize("recipe", [Recipe(), FULL], ids=["defaults", "everything"])
def test_both_ways(recipe: Recipe, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(to_toml(recipe), encoding="utf-8")
    assert read_recipe(path) == recipe
    assert to_toml(read_recipe(path)) == to_toml(recipe)
    assert Recipe.from_dict(recipe.as_dict()) == recipe


def test_every_setting_differs_from_its_default_in_the_full_example() -> None:
    def leaves(values: dict, prefix: str = "") -> dict:
        found = {}
        for key, value in values.items():
            found |= leaves(value, f"{key}.") if isinstance(value, dict) else {prefix + key: value}
        return found

    default, full = leaves(Recipe().as_dict()), leaves(FULL.as_dict())
    assert {key for key in full if default.get(key) == full[key]} == set()


def test_what_is_left_out_keeps_its_default(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("epochs = 3\n[sparsifying]\nstrength = 1\n")
    assert read_recipe(path) == Recipe(epochs=3, sparsifying=Sparsifying(strength=1.0))
    assert isinstance(read_recipe(path).sparsifying.strength, float)
    assert "data_root" not in tomllib.loads(to_toml(Recipe()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 3", "has unknown key 'epoch'; known are model, arguments,"),
        ("[optimisation]\nlr = 0.1", "'optimisation' of .* has unknown key 'lr'; known are optimizer, learning_rate,"),
        ("epochs = 3.5", "'epochs' of .* cannot be 3.5"),
        ("epochs = true", "'epochs' of .* cannot be True"),
        ("augment = 1", "'augment' of .* cannot be 1"),
        ('epochs = "3"', "'epochs' of .* cannot be '3'"),
        ("model = 3", "'model' of .* cannot be 3"),
        ("data_root = 3", "'data_root' of .* cannot be 3"),
        ('[optimisation]\nlearning_rate = "0.1"', "'learning_rate' of 'optimisation' of .* cannot be '0.1'"),
        ('[optimisation]\noptimizer = "lion"', "'optimizer' of 'optimisation' of .* cannot be 'lion'"),
        ("[optimisation]\nmilestones = 0.5", "'milestones' of 'optimisation' of .* must be a list, got 0.5"),
        ('[optimisation]\nmilestones = ["x"]', "entry 0 of 'milestones' of .* cannot be 'x'"),
        ("optimisation = 3", "'optimisation' of .* must be a table, got 3"),
        ("epochs = ", "is not valid TOML"),
    ],
)
def test_mistakes_name_the_key_and_the_file(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(SparsityError, match=message) as caught:
        read_recipe(path)
    assert "wrong.toml" in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(SparsityError, match=r"cannot read the configuration '.*none.toml': No such file"):
        read_recipe(tmp_path / "none.toml")
    with pytest.raises(SparsityError, match=r"cannot read the configuration '.*': Is a directory"):
        read_recipe(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"model = '\xff'")
    with pytest.raises(SparsityError, match=r"bytes.toml' is not valid TOML"):
        read_recipe(tmp_path / "bytes.toml")
