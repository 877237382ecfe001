"""A whole run: teacher, training, cut and retraining, compaction, results."""

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from diffsparse.checkpoint import load, save
from diffsparse.compaction import Compacted
from diffsparse.data import open_data
from diffsparse.data.dataset import DataSet
from diffsparse.errors import SparsityError
from diffsparse.files import write_json, write_text
from diffsparse.gating import Count
from diffsparse.measuring import Measurement, measure
from diffsparse.methods import Method
from diffsparse.traffic.data import TrafficDataSet
from diffsparse.traffic.objective import Forecast
from diffsparse.traffic.report import draw_learned_graph, graph_figures, learned_graph, write_graph
from diffsparse.training.aim import NEAR
from diffsparse.training.build import build_model, check_forecast
from diffsparse.training.config import Recipe, Sparsifying
from diffsparse.training.context import Phase, Setting
from diffsparse.training.environment import environment
from diffsparse.training.evaluate import evaluate
from diffsparse.training.folder import RunFolder
from diffsparse.training.interrupt import Interrupt
from diffsparse.training.log import Log
from diffsparse.training.loop import Trainer
from diffsparse.training.methods import NO_STRENGTH, choose_method
from diffsparse.training.objective import Classification, Objective
from diffsparse.training.processes import Processes, joined
from diffsparse.training.watcher import Watcher
from diffsparse.wiring.methods import wired_stages
from diffsparse.wiring.report import draw_learned_wiring, learned_wiring, wiring_figures

TRAINED = "trained.safetensors"
COMPACT = "compact.safetensors"
_PHASES = {"teacher": (0, "teacher.safetensors"), "train": (1, TRAINED), "retrain": (2, None)}


def train(
    recipe: Recipe,
    output: Path,
    *,
    resume: bool = False,
    tensorboard: bool = False,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Train by `recipe` and write everything to the folder `output`; returns what its result.json says.

    Args:
        recipe: the run.
        output: a folder that does not exist or is empty, or that of the run to resume. With several processes all
            must see it.
        resume: go on from the newest whole checkpoint in `output`; starts anew if there is none.
        tensorboard: write for TensorBoard too.
        watcher: is told of every step and epoch.

    The folder holds config.toml, log.jsonl, checkpoints/, trained.safetensors (with gates, where the method has any),
    compact.safetensors, plan.json and result.json; of a learned graph also graph.csv and its pictures, graph and roads,
    of a wired network its picture, wiring, as SVG and PNG.

    Raises:
        SparsityError: bad input, a loss that diverged, a disk that is full.
        StoppedError: a signal came; a checkpoint was written.
    """
    recipe.check()
    folder = RunFolder(output)
    with joined(recipe.hardware) as processes, Interrupt() as interrupt:
        if recipe.batch_size % (processes.world * recipe.optimisation.accumulate):
            raise SparsityError(
                f"a batch of {recipe.batch_size} cannot be shared by {processes.world} processes in "
                f"{recipe.optimisation.accumulate} pieces each"
            )
        data = _data(recipe, processes)
        if len(data.train) < recipe.batch_size:
            raise SparsityError(
                f"a batch of {recipe.batch_size} is more than the {len(data.train)} inputs of {data.name} to train on"
            )
        setting = Setting(
            recipe=recipe,
            data=data,
            processes=processes,
            folder=folder,
            log=Log(path=folder.log, tensorboard=folder.file("tensorboard") if tensorboard else None),
            watcher=watcher if watcher is not None and processes.first else Watcher(),
            interrupt=interrupt,
        )
        return _Run(setting, resume).go()


def _data(recipe: Recipe, processes: Processes) -> DataSet:
    """The first process comes first: it may have to download what the others then find."""
    data, problem = None, None
    if processes.first:
        try:
            data = _opened(recipe)
        except SparsityError as error:
            problem = error
    if processes.agreed(problem is not None):
        raise problem or SparsityError(f"the first process cannot open {recipe.data}")
    return _opened(recipe) if data is None else data


def _opened(recipe: Recipe) -> DataSet:
    return open_data(
        recipe.data,
        root=recipe.data_root,
        augment=recipe.augment,
        image_size=recipe.image_size,
        download=recipe.download,
    )


@dataclass(frozen=True)
class _Run:
    setting: Setting
    resume: bool

    def go(self) -> dict[str, Any]:
        began = time.perf_counter()
        setting, recipe = self.setting, self.setting.recipe
        if isinstance(setting.data, TrafficDataSet):
            check_forecast(recipe)
        fresh = self._fresh(recipe.model, recipe.arguments)
        method = choose_method(recipe.sparsifying, wired=bool(wired_stages(fresh)))
        plain = measure(fresh, setting.example(), latency=False)
        model = self._converted(method.prepare(fresh))
        self._begin(needed=12 * plain.bytes)
        objective = self._objective()
        model = self._phase("train", model, method, objective, recipe.epochs)
        zeros = method.zeros(model)
        self._say_what_is_missing(method, zeros)
        compacted: Compacted[nn.Module] | None
        if method.cuts:
            cut = method.cut(model, setting.example())
            zeros = cut.removed
            epochs = recipe.sparsifying.retrain_epochs
            small = self._phase("retrain", cut.model, Method(), objective, recipe.epochs if epochs is None else epochs)
            compacted = None if cut.compacted is None else dataclasses.replace(cut.compacted, model=small)
        else:
            compacted = method.compacted(model.eval(), fresh, setting.example())
            small = compacted.model
        figures = {
            "trained": self._figures(model, objective),
            "compact": self._figures(small, objective),
        }
        result = {
            "command": "diffsparse train",
            "config": recipe.as_dict(),
            "environment": environment() | {"processes": setting.processes.world},
            "figures": figures,
            "zeros": dataclasses.asdict(zeros) | {"fraction": zeros.fraction},
            "cost": self._costs(plain, small),
            "max_difference": None if compacted is None or method.cuts else compacted.max_difference,
            "seconds": time.perf_counter() - began,
            "training_seconds": self._training_seconds(),
        }
        graph = learned_graph(model)
        if graph is not None:
            result["graph"] = graph_figures(graph, setting.data)
        wiring = learned_wiring(model)
        if wiring is None and wired_stages(model):
            setting.watcher.say(
                "MACs and parameters are those of dense layers: to count the graph, a wired network needs a "
                "convolution 'stem', a sequence 'stages' of WiredStages and a linear 'classifier'"
            )
        if wiring is not None:
            result["wiring"] = wiring_figures(wiring, size=setting.data.input_shape[-1])
        if setting.processes.first:
            self._write(compacted, small, result)
            if graph is not None:
                write_graph(graph, setting.data, setting.folder)
                draw_learned_graph(graph, setting.data, setting.folder, setting.watcher)
            if wiring is not None:
                draw_learned_wiring(wiring, setting.folder, setting.watcher)
        setting.processes.wait()
        return result

    def _fresh(self, name: str, arguments: str) -> nn.Module:
        setting = self.setting
        method = setting.recipe.sparsifying.method
        model = build_model(name, arguments, setting.data, setting.recipe.seed, method).to(setting.processes.device)
        if setting.recipe.hardware.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model

    def _converted(self, model: nn.Module) -> nn.Module:
        model = model.to(self.setting.processes.device)
        if self.setting.recipe.hardware.sync_batchnorm and self.setting.processes.world > 1:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
            ordinary = any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())
            if ordinary and self.setting.processes.device.type == "cpu":
                raise SparsityError("sync_batchnorm of batch norms without gates needs GPUs; this runs on the CPU")
        return model

    def _begin(self, needed: int) -> None:
        """Make the folder and see that it can take what will be written, before any work."""
        setting = self.setting
        problem = None
        if setting.processes.first:
            try:
                setting.log.check()
                setting.folder.begin(setting.recipe, self.resume, needed)
            except SparsityError as error:
                problem = error
        # all processes end, not only the one that looked
        if setting.processes.agreed(problem is not None):
            raise problem or SparsityError(f"the first process cannot write to '{setting.folder.path}'")

    def _objective(self) -> Objective:
        recipe, settings = self.setting.recipe, self.setting.recipe.distillation
        if isinstance(self.setting.data, TrafficDataSet):
            return Forecast()
        smoothing = recipe.optimisation.label_smoothing
        if settings.teacher is None:
            return Classification(label_smoothing=smoothing)
        named = settings.teacher_model or recipe.model
        teacher = self._fresh(named, recipe.arguments if named == recipe.model else "{}")
        if settings.teacher == "train":
            plain = choose_method(Sparsifying(method="plain"), wired=bool(wired_stages(teacher)))
            epochs = settings.teacher_epochs or recipe.epochs
            teacher = self._converted(plain.prepare(teacher))
            teacher = self._phase("teacher", teacher, plain, Classification(smoothing), epochs)
        else:
            teacher = load(settings.teacher, teacher)
        teacher = teacher.eval().requires_grad_(False)
        return Classification(smoothing, teacher, settings.alpha, settings.temperature)

    def _phase(self, name: str, model: nn.Module, method: Method, objective: Objective, epochs: int) -> nn.Module:
        """Train `model`, or take it from where an earlier run has left it."""
        setting = self.setting
        number, file = _PHASES[name]
        if self.resume and file is not None and setting.folder.file(file).exists():
            return load(setting.folder.file(file), model)
        phase = Phase(name=name, number=number, model=model, method=method, objective=objective, epochs=epochs)
        trainer = Trainer(phase, setting)
        snapshot = setting.folder.newest_snapshot() if self.resume else None
        if self.resume and snapshot is None:
            setting.watcher.say(f"nothing to go on from in '{setting.folder.path}': begins anew")
        if snapshot is not None and snapshot.phase == name:
            trainer.restore(snapshot)
            setting.watcher.say(f"going on from '{snapshot.path}'")
        if setting.processes.first:
            setting.log.forget_after(name, trainer.progress.epoch)
        trained = trainer.run()
        if file is not None and setting.processes.first:
            save(trained, setting.folder.file(file))
        return trained

    def _say_what_is_missing(self, method: Method, zeros: Count) -> None:
        """Fewer zeros than were asked for, or none, should not go unseen."""
        settings = self.setting.recipe.sparsifying
        if method.cuts or settings.method in NO_STRENGTH or settings.strength == 0:
            return
        if settings.target is not None and zeros.fraction < settings.target - NEAR:
            self.setting.watcher.say(
                f"{zeros.fraction:.1%} are zero, and the target was {settings.target:.1%}: it takes more epochs or "
                "another strength"
            )
        elif zeros.zero == 0:
            self.setting.watcher.say(
                f"nothing has become zero: strength {settings.strength:g} is too small for a run of this length; "
                "docs/strength.md says how to choose it"
            )

    def _figures(self, model: nn.Module, objective: Objective) -> dict[str, float]:
        setting = self.setting
        return evaluate(model, setting.data.test, objective, setting.recipe.batch_size, setting.processes)

    def _costs(self, plain: Measurement, small: nn.Module) -> dict[str, dict[str, int]]:
        after = measure(small, self.setting.example(), latency=False)
        return {
            name: {"macs": cost.macs, "params": cost.params, "bytes": cost.bytes}
            for name, cost in {"plain": plain, "compact": after}.items()
        }

    def _training_seconds(self) -> dict[str, float]:
        return {record["phase"]: record["seconds"] for record in self.setting.log.records()}

    def _write(self, compacted: Compacted[nn.Module] | None, small: nn.Module, result: dict[str, Any]) -> None:
        folder = self.setting.folder
        # what another library has cut has no plan: its file holds the numbers, not the way to its architecture
        save(small if compacted is None else compacted, folder.file(COMPACT))
        if compacted is not None:
            write_text(folder.file("plan.json"), compacted.plan.to_json() + "\n")
        result["cost"]["compact"]["file_bytes"] = folder.file(COMPACT).stat().st_size
        write_json(folder.result, result)
