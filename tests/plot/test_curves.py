from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import diffsparse as ds
from diffsparse.records import RunRecord, read_run
from tests.report.examples import log, result, write_run

pytest.importorskip("matplotlib")


def lines(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    found = {line.get_label(): line for line in axes.lines}
    return {label: (list(line.get_xdata()), list(line.get_ydata())) for label, line in found.items()}


def run(**changes: Any) -> RunRecord:
    return RunRecord(name="run", result=result() | changes, log=tuple(log()))


def trained_budget() -> ds.Budget:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
    model, x = ds.sparsify(model, start=1.0), torch.randn(64, 8)
    budget = ds.Budget(model, x[:2], macs=0.5, steps=40, due=0.75)
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.1, momentum=0.9)
    for _ in range(40):
        loss = F.cross_entropy(model(x), (x[:, 0] > 0).long()) + budget.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        budget.step(optimizer)
    return budget


def test_history_of_a_run(tmp_path: Path) -> None:
    above, below = ds.plot.history(write_run(tmp_path / "run")).axes
    epochs = list(range(1, 9))
    cost, loss = lines(above), lines(below)
    assert cost["MACs"] == (epochs, [record["macs_share"] for record in log()])
    assert cost["parameters"][1] == [record["params_share"] for record in log()]
    assert cost["budget: 0.5 of MACs"][1] == [0.5, 0.5]
    assert loss["train loss"] == (epochs, [2 / epoch for epoch in epochs])
    assert set(loss) >= {"train loss", "test loss"}
    assert [text.get_text() for text in above.texts] == ["becomes small"]
    # in both panels, at epoch 4
    assert [list(axes.lines[-1].get_xdata()) for axes in (above, below)] == [[4, 4], [4, 4]]
    assert below.get_xlabel() == "epoch"


def test_history_counts_macs_where_there_are_no_shares() -> None:
    records = [{k: v for k, v in record.items() if not k.endswith("_share")} for record in log()]
    figure = ds.plot.history(replace(run(asked={}), log=tuple(records)))
    assert lines(figure.axes[0])["MACs"][1] == pytest.approx([record["macs_share"] for record in log()], abs=1e-6)
    assert not any(label.startswith("budget") for label in lines(figure.axes[0]))


def test_history_of_a_run_that_was_asked_for_latency() -> None:
    records = [{**record, "latency_share": 0.6} for record in log()]
    figure = ds.plot.history(replace(run(asked={"latency": 0.7}), log=tuple(records)))
    assert lines(figure.axes[0])["latency"][1] == [0.6] * 8
    assert lines(figure.axes[0])["budget: 0.7 of latency"][1] == [0.7, 0.7]


def test_history_of_a_budget() -> None:
    budget = trained_budget()
    (axes,) = ds.plot.history(budget).axes
    drawn = lines(axes)
    # once it is small, it stays so until the end of the run
    assert drawn["MACs"][0] == [0, *(look.step for look in budget.history), budget.steps]
    assert drawn["MACs"][1] == [1.0, *(look.macs for look in budget.history), 0.5]
    assert drawn["MACs"][1][-2] == 0.5
    assert drawn["budget: 0.5 of MACs"][1] == [0.5, 0.5]
    assert drawn["allowed on the way"][1] == [look.wanted for look in budget.history]
    assert list(axes.lines[-1].get_xdata()) == [30, 30]
    assert axes.get_xlabel() == "step"


def test_what_has_no_history() -> None:
    model = ds.sparsify(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    with pytest.raises(ds.SparsityError, match="has not looked at the gates yet"):
        ds.plot.history(ds.Budget(model, torch.randn(2, 2), macs=0.9, steps=10))
    with pytest.raises(ds.SparsityError, match="the run 'run' has no log"):
        ds.plot.history(replace(run(), log=()))
    with pytest.raises(ds.SparsityError, match="a run is the folder of a finished run, got int"):
        ds.plot.history(3)


def test_trade_off_has_a_point_per_run_and_a_colour_per_method(tmp_path: Path) -> None:
    contents = {"a": result(1), "b": result(2, share=0.25), "whole": result(3, "plain", 1.0)}
    folders = [write_run(tmp_path / name, content) for name, content in contents.items()]
    (axes,) = ds.plot.trade_off(folders).axes
    assert {label: (x, pytest.approx(y)) for label, (x, y) in lines(axes).items()} == {
        "ds": ([50, 25], [90.1, 90.2]),
        "plain": ([100], [90.3]),
    }
    assert [text.get_text() for text in axes.texts] == ["a", "b", "whole"]
    assert len({line.get_color() for line in axes.lines}) == len({line.get_marker() for line in axes.lines}) == 2
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("MACs left, % of the whole network", "accuracy, %")
    (axes,) = ds.plot.trade_off([read_run(folders[0])], cost="params").axes
    assert lines(axes)["ds"][0] == [pytest.approx(100 * 2 / 3)]


def test_runs_that_cannot_be_compared(tmp_path: Path) -> None:
    other = result()
    other["figures"]["compact"], other["headline"] = {"loss": 1.0, "mape": 12.0}, "mape"
    with pytest.raises(ds.SparsityError, match="judged by different figures: accuracy, mape"):
        ds.plot.trade_off([run(), RunRecord(name="other", result=other)])
    with pytest.raises(ds.SparsityError, match="cost must be one of macs, params, bytes, got 'time'"):
        ds.plot.trade_off([run()], cost="time")
    with pytest.raises(ds.SparsityError, match="one or more finished runs"):
        ds.plot.trade_off([])
    with pytest.raises(ds.SparsityError, match="is not the folder of a run"):
        ds.plot.trade_off([tmp_path])
