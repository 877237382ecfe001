from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse import SparsityError
from diffsparse.models.transformer import LanguageModel, TextClassifier
from diffsparse.text import open_plain_text, open_sentences
from diffsparse.text.tasks import LanguageModelling, LanguageObjective, TextClassification
from diffsparse.training import Recipe, Sparsifying
from diffsparse.training.classification import distillation_loss
from tests.text.files import write_both

PLAIN = Sparsifying(method="plain")


class Bigrams(nn.Module):
    """A user's own network: the next byte from the last one."""

    def __init__(self, rank: int = 4) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(256, rank), nn.Linear(rank, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.out(self.table(tokens))
        return logits


def test_networks_are_told_what_the_data_says(tmp_path: Path) -> None:
    sentences = open_sentences(write_both(tmp_path), length=20)
    net = TextClassification().build("bert-mini-0.5", {"layers": 1, "heads": 2}, sentences, PLAIN)
    assert isinstance(net, TextClassifier)
    assert net.network.config.hidden_size == 32
    assert net.network.config.max_position_embeddings == 20
    assert net(sentences.example(2)).shape == (2, 2)
    text = open_plain_text(tmp_path, length=20)
    net = LanguageModelling().build("gpt-mini", {"layers": 1, "heads": 2}, text, PLAIN)
    assert isinstance(net, LanguageModel)
    assert net(text.example(2)).shape == (2, 20, 256)
    assert isinstance(LanguageModelling().build(f"{__name__}:Bigrams", {"rank": 2}, text, PLAIN), Bigrams)


@pytest.mark.parametrize(
    ("name", "keywords", "message"),
    [
        ("bert-mini", {}, "bert-mini cannot learn from plain text; gpt-mini can, or your own class"),
        ("preresnet20", {}, "preresnet20 cannot learn from plain text"),
        ("gpt-mini", {"depth": 3}, "gpt-mini cannot be called with {'depth': 3}"),
        ("gpt-mini", {"layers": 0}, "layers must be a whole number of at least 1, got 0"),
        ("gpt-mini-0.01", {}, "leaves nothing of 32"),
    ],
)
def test_networks_that_do_not_suit_are_refused(
    tmp_path: Path, name: str, keywords: dict[str, int], message: str
) -> None:
    text = open_plain_text(write_both(tmp_path), length=20)
    with pytest.raises(SparsityError, match=message):
        LanguageModelling().build(name, keywords, text, PLAIN)


def test_the_loss_is_the_mean_over_all_positions() -> None:
    torch.manual_seed(0)
    outputs, targets, inputs = torch.randn(3, 5, 7), torch.randint(7, (3, 5)), torch.zeros(3, 5)
    expected = torch.stack([F.cross_entropy(outputs[n, t], targets[n, t]) for n in range(3) for t in range(5)]).mean()
    objective = LanguageModelling().objective(Recipe(), None)
    torch.testing.assert_close(objective.loss(outputs, inputs, targets), expected)
    sums = sum(objective.sums(outputs[n : n + 1], targets[n : n + 1]) for n in range(3))
    assert objective.figures(sums) == pytest.approx({"loss": expected.item(), "nats_per_token": expected.item()})
    assert isinstance(objective, LanguageObjective)
    assert not objective.higher_is_better


def test_a_teacher_teaches_every_position() -> None:
    torch.manual_seed(0)
    teacher, outputs, tokens = Bigrams().eval(), torch.randn(2, 5, 256), torch.randint(256, (2, 5))
    recipe = Recipe()
    settings = recipe.distillation
    hard = F.cross_entropy(outputs.flatten(0, 1), tokens.flatten())
    soft = distillation_loss(outputs.flatten(0, 1), teacher(tokens).flatten(0, 1), settings.temperature)
    loss = LanguageModelling().objective(recipe, teacher).loss(outputs, tokens, tokens)
    torch.testing.assert_close(loss, (1 - settings.alpha) * hard + settings.alpha * soft)
