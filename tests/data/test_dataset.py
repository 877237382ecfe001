"""What a data set says of itself."""

import torch

from diffsparse.data import DataSet, Normalisation, Part, TensorPart


def labelled(labels: list[int]) -> TensorPart:
    images = torch.zeros(len(labels), 2, 3, 4)
    return TensorPart(images=images, labels=torch.tensor(labels), normalisation=Normalisation.of(images))


def test_the_summary_counts_the_entries_of_each_class() -> None:
    train, test = labelled([0, 0, 0, 2, 2, 1]), labelled([2])
    summary = DataSet(name="set", train=train, test=test, input_shape=(2, 3, 4), num_outputs=3).summary()
    assert summary.headings == ("images", "classes", "shape", "fewest per class", "most per class")
    assert summary.rows == {"train": ("6", "3", "2 x 3 x 4", "1", "3"), "test": ("1", "3", "2 x 3 x 4", "0", "1")}
    assert summary.caption is None


def test_a_validation_part_stands_between_the_others() -> None:
    part = labelled([0])
    data = DataSet(name="set", train=part, validation=part, test=part, input_shape=(2, 3, 4), num_outputs=1)
    assert list(data.summary().rows) == ["train", "validation", "test"]


def test_a_part_without_labels_has_no_class_counts() -> None:
    class Values:
        def __len__(self) -> int:
            return 1234

    values: Part = Values()  # type: ignore[assignment]
    data = DataSet(name="values", train=values, test=values, input_shape=(3,), num_outputs=1)
    assert data.summary().rows["train"] == ("1,234", "1", "3", "-", "-")
