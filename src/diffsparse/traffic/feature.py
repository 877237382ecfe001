"""What traffic forecasting adds to the rest of the package; imported when names are looked up."""

from diffsparse.data import DataRequest, register_data
from diffsparse.traffic.data import TRAFFIC_NAMES, TrafficDataSet, open_traffic
from diffsparse.traffic.data.open import SYNTHETIC


def _open(request: DataRequest) -> TrafficDataSet:
    request.refuse_download()
    request.check_size(None)
    return open_traffic(request.name, None if request.name == SYNTHETIC else request.folder())


for _name in TRAFFIC_NAMES:
    register_data(_name, _open)
