"""Accuracy at equal cost: our budget against slimming, Torch-Pruning, proximal steps and narrow networks.

    python experiments/budget.py quick --data-root DIR

All methods train the same network on the same images for the same number of epochs. Each run is written to
`--runs`. `--summary` collects them in experiments/results/budget-SETTING.json. Runs that are in either place are not
repeated, so the command can be stopped and started, also on another machine.
"""

import argparse
import copy
import json
import platform
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from comparison.loop import Training
from comparison.peers import PEERS, STARTS
from comparison.setting import SETTINGS, Images
from comparison.summary import RESULTS, add_latency, markdown, read_runs, rows_of, timing_machine
from comparison.variants import OURS, Variant
from torch import nn

import diffsparse as ds
from diffsparse.measuring.latency_table import cpu_name
from diffsparse.models.preactivation import PreResNet, initialise

CUT_AT = 0.5
"""Share of the steps after which peers cut."""
SCRATCH = "the learned architecture, from scratch"


class Comparison:
    """Makes runs of one setting."""

    def __init__(self, name: str, root: Path, runs: Path, again: bool = False) -> None:
        self.name, self.setting = name, SETTINGS[name]
        self.images = Images(root, self.setting)
        self.folder = runs / f"budget-{name}"
        self.folder.mkdir(parents=True, exist_ok=True)
        known = read_runs(self.folder, name, stored=not again)
        self.known = {(run["method"], run["budget"], run["seed"]) for run in known}
        self.example = self.images.test[:2]

    def fresh(self, seed: int, factor: float = 1.0) -> nn.Module:
        """A new network."""
        torch.manual_seed(seed)
        return self.setting.network(factor).to(memory_format=self.setting.memory_format)

    def path(self, method: str, budget: float, seed: int) -> Path:
        """Where a run is written."""
        return self.folder / f"{method.replace(' ', '_').replace('/', 'over')}-{budget:g}-{seed}.json"

    def run(self, method: str, budget: float, seed: int) -> None:
        """Make a run, unless its record is there."""
        if (method, budget, seed) not in self.known:
            self.make(method, budget, seed)

    def make(self, method: str, budget: float, seed: int) -> None:
        """Make a run and write its network and its record."""
        if method == "plain":
            training = self._plain(seed)
        elif method == "uniform, from scratch":
            training = self._uniform(budget, seed)
        elif method in PEERS:
            training = self._peer(method, budget, seed)
        elif method in OURS:
            training = self._ours(OURS[method], budget, seed)
        elif method == SCRATCH:
            training = self._scratch(budget, seed)
        else:
            raise SystemExit(f"there is no method {method!r}")
        self._write(training, method, budget, seed)

    def _write(self, training: Training, method: str, budget: float, seed: int) -> None:
        cost = ds.measure(training.model, self.example[:1], latency=False)
        whole = ds.measure(self.fresh(seed), self.example[:1], latency=False)
        result = {
            "setting": self.name,
            "method": method,
            "budget": budget,
            "seed": seed,
            "accuracy": training.curve[-1],
            "curve": training.curve,
            "macs": cost.macs / whole.macs,
            "params": cost.params / whole.params,
            "seconds": training.seconds,
            "machine": cpu_name(),
            "versions": {"torch": torch.__version__, "python": platform.python_version(), "diffsparse": ds.__version__},
        }
        path = self.path(method, budget, seed)
        torch.save(training.model, path.with_suffix(".pt"))
        _write_json(path, result)
        print(f"{method} {budget:g} seed {seed}: {result['accuracy']:.2%} at {result['macs']:.1%}", flush=True)

    def _plain(self, seed: int) -> Training:
        training = Training(self.fresh(seed), self.images, self.setting, seed)
        training.until(round(CUT_AT * training.total))
        self._save_start(copy.deepcopy(training), "plain", seed)
        training.until(training.total)
        return training

    def _trained(self, seed: int) -> nn.Module:
        """The whole network, trained to the end."""
        path = self.path("plain", 1.0, seed).with_suffix(".pt")
        if not path.exists():
            self.make("plain", 1.0, seed)
        model: nn.Module = torch.load(path, weights_only=False)
        return model

    def _uniform(self, budget: float, seed: int) -> Training:
        whole = ds.measure(self.fresh(seed), self.example[:1], latency=False).macs

        def miss(factor: float) -> float:
            return abs(ds.measure(self.fresh(seed, factor), self.example[:1], latency=False).macs / whole - budget)

        factor = min(self.setting.widths, key=miss)
        training = Training(self.fresh(seed, factor), self.images, self.setting, seed)
        training.until(training.total)
        return training

    def _ours(self, variant: Variant, budget: float, seed: int) -> Training:
        model = ds.sparsify(self.fresh(seed), start=variant.start, rgf=variant.rgf)
        setting = replace(self.setting, epochs=variant.epochs or self.setting.epochs)
        training = Training(model, self.images, setting, seed)
        aim = ds.Budget(model, self.example, macs=budget, steps=training.total, **variant.options)
        teacher = None if variant.teacher is None else variant.teacher(lambda: self._trained(seed), training, aim)

        def after_step() -> None:
            shrank = aim.step(training.optimizer)
            if teacher is not None:
                teacher.step_done(shrank)

        loss = None if teacher is None else teacher.loss
        training.until(training.total, loss=loss, term=aim.penalty, after_step=after_step)
        return training

    def _scratch(self, budget: float, seed: int) -> Training:
        """The architecture that our method has found with this seed, from a fresh start."""
        found = self.path("budget", budget, seed).with_suffix(".pt")
        if not found.exists():
            self.make("budget", budget, seed)
        model: nn.Module = torch.load(found, weights_only=False)
        torch.manual_seed(seed)
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        if isinstance(model, PreResNet):
            model.apply(initialise)
        training = Training(model, self.images, self.setting, seed)
        training.until(training.total)
        return training

    def _peer(self, method: str, budget: float, seed: int) -> Training:
        peer = PEERS[method]
        training = self._started(peer.start, seed)
        training.model = peer.cut(training.model, self.example, budget)
        training.new_optimizer()
        if STARTS[peer.start].restart:
            training.begin, training.end = training.done, training.total
        training.until(training.total)
        return training

    def _started(self, start: str, seed: int) -> Training:
        """A training up to the cut, from a file if it was made before."""
        path, how = self._start_path(start, seed), STARTS[start]
        if path.exists():
            training: Training = torch.load(path, weights_only=False)
            training.images = self.images
            return training
        training = Training(how.prepare(self.fresh(seed)), self.images, self.setting, seed)
        cut_at = round(CUT_AT * training.total)
        if how.restart:
            training.end = cut_at
        if how.after_step is not None:
            how.after_step(training)
        term = None if how.term is None else how.term(training.model)
        after = None if how.after_backward is None else how.after_backward(training.model, self.example)
        training.until(cut_at, term=term, after_backward=after)
        self._save_start(training, start, seed)
        return training

    def _save_start(self, training: Training, start: str, seed: int) -> None:
        """For methods that cut what this training has made; each makes an optimiser of its own."""
        training.optimizer = None  # type: ignore[assignment]
        _save(training, self._start_path(start, seed))

    def _start_path(self, start: str, seed: int) -> Path:
        return self.folder / f"start-{start}-{seed}.pt"


def _save(training: Training, path: Path) -> None:
    kept, training.images = training.images, None  # type: ignore[assignment]
    torch.save(training, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)
    training.images = kept


def _write_json(path: Path, content: Any) -> None:
    path.with_suffix(".new").write_text(json.dumps(content, indent=1) + "\n")
    path.with_suffix(".new").replace(path)


def jobs(methods: list[str], budgets: Sequence[float], seeds: Sequence[int]) -> Iterator[tuple[str, float, int]]:
    """All runs, seed by seed."""
    for seed in seeds:
        for method in methods:
            for budget in (1.0,) if method == "plain" else budgets:
                yield method, budget, seed


METHODS = ["plain", "budget", SCRATCH, "uniform, from scratch", *PEERS]


def summarise(comparison: Comparison, latency: bool) -> None:
    """Write the results from the runs there are, and print them."""
    runs = read_runs(comparison.folder, comparison.name)
    if latency:
        add_latency(comparison.folder, runs, comparison.images.test[:64])
    rows, machine = rows_of(runs), timing_machine(runs)
    setting = asdict(comparison.setting) | {
        "network": type(comparison.fresh(0)).__name__,
        "cut_at": CUT_AT,
        "timed_on": machine,
    }
    _write_json(RESULTS / f"budget-{comparison.name}.json", {"setting": setting, "rows": rows, "runs": runs})
    print(markdown(rows))


def main() -> None:
    """Make the missing runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("setting", choices=SETTINGS)
    parser.add_argument("--data-root", type=Path, required=True, help="folder of CIFAR-10, or of its binary files")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--again", action="store_true", help="also make the runs whose results are stored")
    parser.add_argument("--summary", action="store_true", help="write the results of the runs there are")
    parser.add_argument(
        "--latency", action="store_true", help="with --summary: time the networks, of runs of this version"
    )
    parser.add_argument("--budgets", nargs="*", type=float)
    parser.add_argument("--seeds", nargs="*", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    comparison = Comparison(options.setting, options.data_root, options.runs, options.again)
    if options.summary:
        summarise(comparison, options.latency)
        return
    seeds, budgets = options.seeds or range(comparison.setting.seeds), options.budgets or comparison.setting.budgets
    for job in jobs(options.methods, budgets, seeds):
        comparison.run(*job)


if __name__ == "__main__":
    main()
