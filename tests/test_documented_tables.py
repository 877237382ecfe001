"""Tables in the documentation are those of the files in experiments/results."""

import json
import re

import pytest

from experiments.transformer_runs.summary import PAGE, RESULTS, documented, rows_of
from experiments.transformer_runs.tasks import TASKS

MARKED = re.findall(r"<!-- table of (\w+) -->", PAGE.read_text())


def test_every_task_with_results_has_a_table():
    assert set(MARKED) == {task for task in TASKS if (RESULTS / f"transformers-{task}.json").exists()}


@pytest.mark.parametrize("task", MARKED)
def test_tables_of_transformers_are_up_to_date(task):
    content = json.loads((RESULTS / f"transformers-{task}.json").read_text())
    rows = rows_of(content["runs"], TASKS[task].figure)
    assert rows == content["rows"]
    page = PAGE.read_text()
    assert documented(page, task, rows) == page, f"python experiments/transformers.py {task} --summary writes it"


def test_a_page_without_marks_is_refused():
    with pytest.raises(RuntimeError, match="no marks"):
        documented("# A page", "sst2", [])
