import json
import platform

import torch

import diffsparse
from diffsparse.training.environment import environment


def test_names_versions_and_the_machine_in_plain_data() -> None:
    found = environment()
    assert json.loads(json.dumps(found)) == found
    assert found["diffsparse"] == diffsparse.__version__
    assert found["torch"] == torch.__version__
    assert found["python"] == platform.python_version()
    assert found["threads"] == torch.get_num_threads()
