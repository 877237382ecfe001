"""A whole run: teacher, training, cut and retraining, compaction, results."""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from diffsparse.budget.limits import COUNTED
from diffsparse.checkpoint import load, save
from diffsparse.data import open_data
from diffsparse.data.dataset import DataSet
from diffsparse.errors import SparsityError
from diffsparse.files import write_json, write_text
from diffsparse.gating import Count
from diffsparse.measuring import measure
from diffsparse.measuring.meter import measure_in_turns
from diffsparse.methods import Cut, Method, Sparsifying, choose_method
from diffsparse.methods.costs import asked_costs
from diffsparse.methods.method import resolved
from diffsparse.methods.settings import epochs_after_cut
from diffsparse.training.board import Board
from diffsparse.training.build import build_model
from diffsparse.training.command import train_command
from diffsparse.training.config import Recipe
from diffsparse.training.context import Interrupt, Phase, RunContext, Watcher
from diffsparse.training.evaluate import evaluate
from diffsparse.training.folder import Log, RunFolder
from diffsparse.training.loop import Trainer
from diffsparse.training.outcome import TIMING, file_size, latencies, layer_table
from diffsparse.training.processes import environment, joined
from diffsparse.training.report import REPORTS, reports_in
from diffsparse.training.task import TASKS, Objective

TRAINED = "trained.safetensors"
COMPACT = "compact.safetensors"
PLAN = "plan.json"
TEACHER = "teacher.safetensors"


def train(
    recipe: Recipe, output: Path, *, resume: bool = False, tensorboard: bool = False, watcher: Watcher | None = None
) -> dict[str, Any]:
    """Train by `recipe` and write everything to the folder `output`; returns what its result.json says.

    Args:
        recipe: the run.
        output: a new or empty folder, or that of the run to resume. With several processes all must see it.
        resume: go on from the newest whole checkpoint in `output`; starts from the beginning if there is none.
        tensorboard: write for TensorBoard as well.
        watcher: told of every step and epoch.

    The folder holds config.toml, log.jsonl, checkpoints/, trained.safetensors (with gates, if it still has any),
    compact.safetensors, plan.json, result.json and the files of reports.

    Raises:
        SparsityError: bad input, a loss that diverged, a disk that is full.
        StoppedError: a signal came; a checkpoint was written.
    """
    recipe.check()
    folder, batch, pieces = RunFolder(output), recipe.batch_size, recipe.optimisation.accumulate
    with joined(recipe.hardware) as processes, Interrupt() as interrupt:
        if batch % (processes.world * pieces):
            sharers = f"{processes.world} processes in {pieces} pieces each"
            raise SparsityError(f"a batch of {batch} cannot be shared by {sharers}")
        # the first process comes first: it may have to download what the others then find
        first = processes.first_does(lambda: open_recipe_data(recipe), f"the first process cannot open {recipe.data}")
        data = open_recipe_data(recipe) if first is None else first
        if (count := len(data.train)) < batch:
            raise SparsityError(f"a batch of {batch} is more than the {count} inputs of {data.name} to train on")
        return _Run(
            recipe=recipe,
            data=data,
            processes=processes,
            folder=folder,
            log=Log(path=folder.log, board=Board(output / "tensorboard") if tensorboard else None),
            watcher=watcher if watcher is not None and processes.first else Watcher(),
            interrupt=interrupt,
            resume=resume,
        ).go()


def open_recipe_data(recipe: Recipe) -> DataSet:
    """The data set that `recipe` names."""
    return open_data(
        recipe.data,
        root=recipe.data_root,
        augment=recipe.augment,
        image_size=recipe.image_size,
        download=recipe.download,
        network=recipe.model,
    )


@dataclass(frozen=True, kw_only=True)
class _Run(RunContext):
    resume: bool

    def go(self) -> dict[str, Any]:
        began, recipe = time.perf_counter(), self.recipe
        task = TASKS.find(self.data.task)
        task.check(recipe)
        fresh = self._fresh(recipe.model, recipe.arguments)
        settings = resolved(recipe.sparsifying, fresh, self.pace)
        method = choose_method(settings, fresh)
        plain = measure(fresh, self.example(), latency=False)
        name = method.network(recipe.model, lambda name: self._fresh(name, recipe.arguments), self.example())
        fresh = fresh if name == recipe.model else self._fresh(name, recipe.arguments)
        model = self.synchronised(method.prepare(fresh, self.sample).to(self.processes.device), shrinks=method.shrinks)
        method = method.fitted(model, self.example(), recipe.epochs * self.steps)
        failure = f"the first process cannot write to '{self.folder.path}'"
        self.processes.first_does(self.log.check, failure)
        self.processes.first_does(lambda: self.folder.begin(recipe, self.resume, needed=12 * plain.bytes), failure)
        objective = task.objective(recipe, self._teacher())
        model, small = self._trained(method, settings, model, fresh, objective)
        whole = self._fresh(recipe.model, recipe.arguments)
        timed = self.processes.first
        before, after = measure_in_turns([whole, small.model], self.example(), latency=timed, **TIMING)
        costs = {
            name: {key: getattr(cost, key) for key in COUNTED} for name, cost in (("plain", before), ("compact", after))
        }
        result: dict[str, Any] = {
            "command": train_command(recipe),
            "config": recipe.as_dict(),
            "environment": environment() | {"processes": self.processes.world},
            "figures": {
                name: evaluate(net, self.data.test, objective, recipe.batch_size, self.processes)
                for name, net in {"trained": model, "compact": small.model}.items()
            },
            "headline": objective.headline,
            "higher_is_better": objective.higher_is_better,
            "network": name,
            "data": {"train": len(self.data.train), "outputs": self.data.num_outputs},
            "strength": self._last_strength(),
            "asked": asked_costs(method),
            "zeros": _share(small.removed) | {"kinds": {kind: _share(count) for kind, count in small.kinds.items()}},
            "cost": costs,
            "latency": latencies(before, after),
            "layers": layer_table(whole, small.model, before, after),
            "max_difference": None if method.cuts or not small.compacted else small.compacted.max_difference,
            "seconds": time.perf_counter() - began,
            "training_seconds": {record["phase"]: record["seconds"] for record in self.log.records()},
        }
        for name, report in REPORTS.items():
            if (figures := report.figures(model, self.data, self.watcher.say)) is not None:
                result[name] = figures
        if self.processes.first:
            costs["plain"]["file_bytes"] = file_size(whole, self.folder.path)
            self._write(model, small, result)
        self.processes.wait()
        return result

    def _trained(
        self, method: Method, settings: Sparsifying, model: nn.Module, fresh: nn.Module, objective: Objective
    ) -> tuple[nn.Module, Cut]:
        """The trained model, with gates if it still has any, and the smaller one that the method makes of it."""
        example = self.example()
        training = Phase(
            name="train",
            number=1,
            model=model,
            method=method,
            sparsifying=settings,
            objective=objective,
            epochs=self.recipe.epochs,
        )
        # a target raises lambda as far as it is needed
        if settings.target is None and not self.resume and (weakness := method.weakness(settings, self.pace)):
            self.watcher.say(weakness)
        model = self._phase(training, TRAINED)
        zeros = method.zeros(model)
        if shortfall := method.shortfall(zeros, settings, self.pace):
            self.watcher.say(shortfall)
        if not method.cuts:
            compacted = method.compacted(model.eval(), fresh, example)
            kinds = method.zeros_by_kind(model)
            return model, Cut(model=compacted.model, compacted=compacted, removed=zeros, kinds=kinds)
        cut = method.cut(model, example)
        epochs = epochs_after_cut(self.recipe.epochs, settings.retrain_epochs)
        again = replace(training, name="retrain", number=2, model=cut.model, method=Method(), epochs=epochs)
        small = self._phase(again)
        kept = None if cut.compacted is None else replace(cut.compacted, model=small)
        return model, Cut(model=small, compacted=kept, removed=cut.removed)

    def _fresh(self, name: str, arguments: str) -> nn.Module:
        return self.lay_out(build_model(name, arguments, self.data, self.recipe.seed, self.recipe.sparsifying))

    def _teacher(self) -> nn.Module | None:
        """The network to learn from, trained first if the recipe says so; None if there is none."""
        recipe, settings = self.recipe, self.recipe.distillation
        if settings.teacher is None:
            return None
        named = settings.teacher_model or recipe.model
        teacher = self._fresh(named, recipe.arguments if named == recipe.model else "{}")
        if settings.teacher == "train":
            options = Sparsifying(method="plain")
            plain = choose_method(options, teacher)
            phase = Phase(
                name="teacher",
                number=0,
                model=self.synchronised(plain.prepare(teacher).to(self.processes.device)),
                method=plain,
                sparsifying=options,
                objective=TASKS.find(self.data.task).objective(recipe, None),
                epochs=settings.teacher_epochs or recipe.epochs,
            )
            teacher = self._phase(phase, TEACHER)
        else:
            teacher = load(settings.teacher, teacher)
        return teacher.eval().requires_grad_(False)

    def _phase(self, phase: Phase, file: str | None = None) -> nn.Module:
        """Train the model of a phase, or load what an earlier run has left in `file`."""
        path, name = None if file is None else self.folder.path / file, phase.name
        # a model that became small on the way is in the last checkpoint as well, with what its method knows of it
        if self.resume and path is not None and path.exists() and not phase.method.shrinks:
            return load(path, phase.model)
        trainer = Trainer(phase, self)
        snapshot = self.folder.newest_snapshot() if self.resume else None
        if self.resume and snapshot is None:
            self.watcher.say(f"'{self.folder.path}' holds no checkpoint: the run starts from the beginning")
        if snapshot is not None and snapshot.phase == name:
            trainer.restore(snapshot)
            self.watcher.say(f"going on from '{snapshot.path}'")
        if self.processes.first:
            self.log.forget_after(name, trainer.progress.epoch)
        trained = trainer.run()
        if path is not None and self.processes.first:
            save(phase.method.to_save(trained), path)
        return trained

    def _last_strength(self) -> float | None:
        """The last lambda that was in force; None if there was none."""
        strengths = [record["strength"] for record in self.log.records() if record.get("strength")]
        return strengths[-1] if strengths else None

    def _write(self, model: nn.Module, small: Cut, result: dict[str, Any]) -> None:
        path = self.folder.path
        # what another library has cut has no plan: its file holds the weights, not the way to its architecture
        save(small.compacted or small.model, path / COMPACT)
        if small.compacted:
            write_text(path / PLAN, small.compacted.plan.to_json() + "\n")
        result["cost"]["compact"]["file_bytes"] = (path / COMPACT).stat().st_size
        write_json(self.folder.result, result)
        for report in reports_in(result):
            report.write(model, self.data, path, self.watcher.say)


def _share(count: Count) -> dict[str, Any]:
    """A count as plain data, with its share."""
    return asdict(count) | {"fraction": count.fraction}
