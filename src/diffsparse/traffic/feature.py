"""What traffic forecasting adds to the rest of the package; imported when names are looked up."""

import re

from torch import nn

from diffsparse.data import DataRequest, register_data
from diffsparse.errors import SparsityError
from diffsparse.methods import register_method
from diffsparse.models import Family, register_family
from diffsparse.traffic.data import TRAFFIC_NAMES, TrafficDataSet, open_traffic
from diffsparse.traffic.data.open import SYNTHETIC
from diffsparse.traffic.report import GraphReport
from diffsparse.traffic.task import MODEL, Forecasting, GivenMap
from diffsparse.training import register_report, register_task


def _open(request: DataRequest) -> TrafficDataSet:
    request.refuse_download()
    request.check_size(None)
    return open_traffic(request.name, None if request.name == SYNTHETIC else request.folder())


def _needs_roads(match: re.Match[str], num_classes: int, in_channels: int) -> nn.Module:
    raise SparsityError(f"{MODEL} forecasts speeds on roads: train it on traffic data, such as --data {SYNTHETIC}")


for _name in TRAFFIC_NAMES:
    register_data(_name, _open)
register_family(Family(grammar=MODEL, pattern=MODEL, build=_needs_roads, examples=()))
register_method(GivenMap.name, GivenMap)
register_task("forecasting", Forecasting())
register_report("graph", GraphReport())
