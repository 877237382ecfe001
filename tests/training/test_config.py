import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

from diffsparse import SparsityError
from diffsparse.training import Distillation, Hardware, Optimisation, Recipe, Sparsifying, read_recipe, to_toml


def optimised(**changes: Any) -> Recipe:
    return Recipe(optimisation=Optimisation(**changes))


def sparsified(**changes: Any) -> Recipe:
    return Recipe(sparsifying=Sparsifying(**changes))


def taught(**changes: Any) -> Recipe:
    return Recipe(distillation=Distillation(**changes))


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        optimised(optimizer="adam", schedule="steps", milestones=(), clip=1.0, ema=0.99, accumulate=4),
        sparsified(method="slimming", target=0.5),
        sparsified(method="torch-pruning", macs=0.5, params=1000, retrain_epochs=0),
        sparsified(method="scratch", like=Path("small.safetensors")),
        sparsified(method="scratch", bytes=0.5),
        sparsified(target=0.5, ramp_epochs=3, rgf=0.1),
        sparsified(macs=0.5, params=1.0, bytes=20_000, due=1.0, rgf=0.1, start=1.0),
        sparsified(strength="auto"),
        sparsified(strength=0.0),
        sparsified(method="slimming"),
        sparsified(method="slimming", strength=0.1),
        taught(teacher="train", teacher_model="preresnet20", teacher_epochs=3),
        Recipe(hardware=Hardware(threads=2, precision="bfloat16")),
    ],
    ids=str,
)
def test_sound_recipes(recipe: Recipe) -> None:
    recipe.check()


WRONG = [
    (Recipe(epochs=0), "epochs must be a whole number of at least 1, got 0"),
    (Recipe(batch_size=0), "batch_size must be a whole number of at least 1, got 0"),
    (Recipe(seed=-1), "seed must be a whole number of at least 0"),
    (Recipe(seed=2**31), "seed must be a whole number"),
    (optimised(learning_rate=0.0), "learning_rate must be a finite number above 0, got 0.0"),
    (optimised(learning_rate=float("nan")), "learning_rate must be a finite number above 0, got nan"),
    (optimised(gate_rate=0.0), "gate_rate must be a finite number above 0, got 0.0"),
    (optimised(momentum=1.5), "momentum must be a finite number of at least 0 and of at most 1, got 1.5"),
    (optimised(optimizer="adam", momentum=1.0), "momentum, the beta1 of adam, must be below 1"),
    (optimised(optimizer="adamw", momentum=1.0), "momentum, the beta1 of adamw, must be below 1"),
    (optimised(weight_decay=-1.0), "weight_decay must be"),
    (optimised(gate_weight_decay=-1.0), "gate_weight_decay must be"),
    (optimised(factor=0.0), "factor must be"),
    (optimised(warmup_epochs=-1.0), "warmup_epochs must be"),
    (optimised(label_smoothing=2.0), "label_smoothing must be"),
    (optimised(milestones=(0.5, 40.0)), "a milestone, a share of all epochs, must be .* got 40.0"),
    (optimised(clip=0.0), "clip must be"),
    (optimised(ema=1.1), "ema must be"),
    (optimised(accumulate=0), "accumulate must be"),
    (optimised(accumulate=3), r"a batch of 64 cannot go in 3 equal pieces \(accumulate\)"),
    (optimised(optimizer="lion"), "optimizer must be one of sgd, adam, adamw, got 'lion'"),
    (optimised(schedule="linear"), "schedule must be one of cosine, steps, constant, got 'linear'"),
    (sparsified(method="magic"), "method must be one of plain, ds,.* got 'magic'"),
    (sparsified(norm="l3"), "norm must be one of l1, .* got 'l3'"),
    (sparsified(strength=-0.1), "strength must be"),
    (sparsified(group_size=0), "group_size must be"),
    (sparsified(ramp_epochs=-1.0), "ramp_epochs must be"),
    (sparsified(delay_epochs=-1.0), "delay_epochs must be"),
    (sparsified(delay_epochs=1e6), "delay_epochs=1e[+]06 leaves nothing of"),
    (sparsified(settle_epochs=-1.0), "settle_epochs must be"),
    (sparsified(method="plain", target=0.5), "target=0.5 has no meaning for method plain"),
    (sparsified(ramp_epochs=31), "ramp_epochs=31 ends after lambda is over: there are 30 epochs for it"),
    (sparsified(retrain_epochs=3), "retrain_epochs=3 has no meaning for method ds"),
    (sparsified(delay_epochs=50, settle_epochs=1e6), "delay_epochs=50 and settle_epochs=1e[+]06 leaves nothing of"),
    (sparsified(start=float("inf")), "start must be"),
    (sparsified(target=1.5), "target must be a finite number above 0 and of at most 1, got 1.5"),
    (sparsified(target=0.5, strength=0.0), "steering strength, which must be above 0"),
    (sparsified(macs=0.0), "macs must be a finite number above 0, got 0.0"),
    (sparsified(params=-1.0), "params must be a finite number above 0"),
    (sparsified(macs=1.5), "macs must be a share of the whole network, up to 1, or a whole number, got 1.5"),
    (sparsified(due=0.0), "due must be a finite number above 0 and of at most 1"),
    (sparsified(macs=0.5, target=0.4), "macs=0.5 and target=0.4 both say how small to become; give one of them"),
    (sparsified(bytes=0.5, strength=0.1), "bytes=0.5 and strength=0.1 both say how small to become"),
    (sparsified(macs=0.5, strength="auto"), "macs=0.5 and strength=auto both say"),
    (sparsified(macs=0.5, norm="l21"), "macs=0.5 and norm=l21 both say"),
    (sparsified(macs=0.5, ramp_epochs=3.0), "macs=0.5 and ramp_epochs=3.0 both say"),
    (sparsified(strength=0.1, due=0.4), "due=0.4 says when a cost is reached, and there is none to reach"),
    (sparsified(strength="much"), "strength must be a number or auto, got 'much'"),
    (sparsified(norm="l12"), "auto is for norm l1; give a number as strength for l12"),
    (sparsified(method="proximal-l21"), "auto is for norm l1; give a number as strength for l21"),
    (sparsified(method="proximal-l1", macs=0.5), "macs=0.5 has no meaning for method proximal-l1"),
    (sparsified(method="plain", macs=0.5), "macs=0.5 has no meaning for method plain"),
    (sparsified(method="slimming", due=0.4, macs=0.5), "due=0.4 has no meaning for method slimming"),
    (sparsified(rgf=0.0), "rgf must be"),
    (sparsified(method="slimming", target=0.5, retrain_epochs=-1), "retrain_epochs must be"),
    (sparsified(method="slimming", target=0.5, macs=0.5), "macs=0.5 and target=0.5 both say how small to become"),
    (sparsified(method="scratch", like=Path("x"), macs=0.5), "macs=0.5 and like=x both say how small to become"),
    (sparsified(like=Path("small.safetensors")), "like=small.safetensors has no meaning for method ds"),
    (taught(alpha=1.5), "alpha must be"),
    (taught(temperature=0.0), "temperature must be"),
    (taught(teacher="train", teacher_epochs=0), "teacher_epochs must be"),
    (taught(teacher_model="preresnet20"), 'there is no teacher; give a file of weights or "train"'),
    (taught(teacher="no/such.safetensors"), "there is no file 'no/such.safetensors' with the weights of the teacher"),
    (Recipe(hardware=Hardware(threads=0)), "threads must be"),
    (Recipe(hardware=Hardware(precision="int8")), "precision must be one of float32, bfloat16, float16, got 'int8'"),
]


@pytest.mark.parametrize(("recipe", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_wrong_values_are_named(recipe: Recipe, message: str) -> None:
    with pytest.raises(SparsityError, match=message):
        recipe.check()


def test_is_frozen_and_takes_keywords_only() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().epochs = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        Recipe("preresnet20")  # type: ignore[misc]


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
        macs=0.25,
        params=0.5,
        bytes=12_345.0,
        due=0.4,
        strength=3e-4,
        norm="l21",
        group_size=4,
        settle_epochs=0.25,
        delay_epochs=0.5,
        ramp_epochs=1.5,
        start=1.0,
        rgf=0.1,
        target=0.5,
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
    path.write_text('[sparsifying]\nstrength = "auto"\n')
    assert read_recipe(path) == sparsified(strength="auto")
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
        ('[sparsifying]\nstrength = "much"', "'strength' of 'sparsifying' of .* cannot be 'much'"),
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
