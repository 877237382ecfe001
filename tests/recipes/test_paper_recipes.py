"""The recipes of the paper's tables and figures: complete, consistent, with the networks of the paper."""

from pathlib import Path

import pytest

from diffsparse.recipes.agreement import judge
from diffsparse.recipes.book import Book, read_book
from diffsparse.recipes.columns import PAPER
from diffsparse.recipes.jobs import Job, jobs_of
from diffsparse.recipes.networks import network_cost
from diffsparse.recipes.page import page_path, page_text
from diffsparse.recipes.results import table_values

ROOT = Path(__file__).parent.parent.parent
RECIPES = ROOT / "experiments" / "paper"
# labels of the paper that show a result; some appear twice there, in the main text and in the appendix
LABELS = {
    "tab:resnet_cifar10",
    "tab:resnet_cifar100",
    "tab:densenet40",
    "tab:densenet40_cifar100",
    "tab:resnet164_kd_cifar10",
    "tab:resnet164_kd_cifar100",
    "tab:resnet164_kd_comp_cifar100",
    "tab:densenet40_kd_cifar10",
    "tab:densenet_kd_cifar10",
    "tab:densenet_kd_cifar100",
    "tab:resnet50_kd_imagenet",
    "tab:dnw_cifar10",
    "tab:dnw_cifar100",
    "tab:dnw imagenet",
    "tab:gcn",
    "tab:traffic_data",
    "fig:channel",
    "fig:group",
    "fig:cifar100_channel",
    "fig:cifar100_group",
    "fig:map",
}
# parameters and MACs, counted by hand from the published architectures; None where gates are counted too
COUNTS = {
    ("preresnet164", "cifar10"): (1_703_258, 247_646_720),
    ("preresnet164", "cifar100"): (1_726_388, 247_669_760),
    ("densenet40", "cifar10"): (1_059_298, 282_917_328),
    ("densenet40", "cifar100"): (1_100_428, 282_958_368),
    ("resnet50-preact", "imagenet"): (25_549_352, 4_089_184_256),
    ("mobilenetv1-0.25", "cifar10"): (215_642, 3_331_072),
    ("mobilenetv1-0.25", "cifar100"): (238_772, 3_354_112),
    ("mobilenetv1-0.5-imagenet", "imagenet"): (1_331_592, 149_497_088),
    ("wired-mobilenet", "cifar10"): (None, 105_074_688),
    ("wired-mobilenet", "cifar100"): (None, 105_074_688 + 90 * 1024),
    # the edges of the five graphs at 112, 56, 28, 14 and 7 pixels, 9 weights per sending node, stem and classifier
    ("wired-mobilenet-imagenet", "imagenet"): (
        None,
        sum(
            (edges + 9 * senders) * side**2
            for edges, senders, side in (
                (2_048, 32, 112),
                (32_768, 64 + 128, 56),
                (131_072, 128 + 256, 28),
                (4_718_592, 256 + 5 * 512, 14),
                (2_097_152, 512 + 1024, 7),
            )
        )
        + 27 * 32 * 112**2
        + 1024 * 1000,
    ),
}


@pytest.fixture(scope="module")
def book() -> Book:
    return read_book(RECIPES)


def paper_jobs(book: Book) -> list[Job]:
    return jobs_of(book, book.tables, "paper", data_root=None, runs=Path("runs"))


def test_every_label_has_a_recipe_of_its_name(book: Book) -> None:
    assert {label for table in book.tables.values() for label in table.labels} == LABELS
    for name, table in book.tables.items():
        for label in table.labels:
            assert name == label.replace(":", "-").replace(" ", "_")


def test_networks_of_the_paper_size_have_the_exact_counts(book: Book) -> None:
    networks = {(job.recipe.model, job.recipe.data): job for job in paper_jobs(book)}
    networks.pop(("traffic-gcn", "los-loop"))
    assert networks.keys() == COUNTS.keys()
    for key, job in networks.items():
        cost = network_cost(job.recipe, book.cover.data[job.recipe.data])
        params, macs = COUNTS[key]
        assert cost.macs == macs, key
        assert params is None or cost.params == params, key


@pytest.mark.parametrize("size", ["paper", "day", "small"])
def test_every_run_has_a_configuration_that_makes_sense(book: Book, size: str) -> None:
    jobs = jobs_of(book, book.tables, size, data_root=None, runs=Path("runs"))
    assert jobs
    for job in jobs:
        # the file of a teacher appears when it has been trained
        if job.teacher is None:
            job.recipe.check()
        assert job.recipe.data in book.cover.data
        assert job.recipe.data in book.cover.accelerator.throughput
    assert len({job.folder for job in jobs}) == len(jobs)


def test_every_table_has_all_sizes_and_small_ones_take_at_most_40_minutes(book: Book) -> None:
    for table in book.tables.values():
        if table.sizes:
            # some tables are not in the paper
            assert table.sizes.keys() == {"paper", "day", "small"} - (set() if table.labels else {"paper"})
            small = table.sizes["small"]
            assert small.minutes is not None
            assert small.minutes <= 40
            assert small.seeds >= 2
            assert small.note


def test_the_paper_bears_out_its_own_claims(book: Book) -> None:
    for name, table in book.tables.items():
        values = table_values(book, name, "small", PAPER)
        for claim in table.claims:
            assert judge(claim, values).reported != "differs", claim


def test_channel_tables_have_both_methods(book: Book) -> None:
    for name in ("tab-resnet_cifar10", "tab-resnet_cifar100", "tab-densenet40", "tab-densenet40_cifar100"):
        jobs = [job.recipe.sparsifying for job in jobs_of(book, [name], "small", data_root=None, runs=Path("runs"))]
        gated = [settings for settings in jobs if settings.method == "ds"]
        assert any(settings.strength for settings in gated)
        assert any(settings.macs for settings in gated)


def test_the_page_is_up_to_date(book: Book) -> None:
    assert page_path(book) == ROOT / "docs" / "paper.md"
    assert page_path(book).read_text() == page_text(book), "write it anew: diffsparse paper --write"
