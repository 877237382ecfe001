"""What text adds to the package (data, tasks, names of networks); an entry point names this module."""

import re

from torch import nn

from diffsparse.data import DataRequest, register_data
from diffsparse.errors import SparsityError
from diffsparse.models import Family, register_family
from diffsparse.text.data import TextDataSet, open_plain_text, open_sentences
from diffsparse.text.reading import PLAIN, find_parts
from diffsparse.text.tasks import CLASSIFIER, DECODER, LanguageModelling, TextClassification, pattern
from diffsparse.training import register_task

TEXT, SENTENCES, PLAIN_TEXT = "text", "labelled-text", "plain-text"
_OPENERS = {SENTENCES: open_sentences, PLAIN_TEXT: open_plain_text}
TEXT_NAMES = (TEXT, *_OPENERS)
_SUITS = {CLASSIFIER: SENTENCES, DECODER: PLAIN_TEXT}


def _open(request: DataRequest) -> TextDataSet:
    request.refuse_download()
    request.check_size(None)
    opener = _OPENERS[_kind(request) if request.name == TEXT else request.name]
    return opener(request.folder(), name=request.name)


def _kind(request: DataRequest) -> str:
    """What the folder holds; if it holds both, what the network wants."""
    folder = request.folder()
    there = {SENTENCES: bool(find_parts(folder)), PLAIN_TEXT: any(folder.glob(PLAIN))}
    found = [kind for kind, is_there in there.items() if is_there]
    if not found:
        kinds = f"tab-separated sentences and labels (train.tsv and dev.tsv or test.tsv), or plain text ({PLAIN})"
        raise SparsityError(f"'{folder}' holds no text: looked for {kinds}")
    wanted = [kind for name, kind in _SUITS.items() if re.fullmatch(pattern(name), request.network or "")]
    if len(found) > 1 and not wanted:
        kinds = f"sentences with labels (--data {SENTENCES}) and plain text (--data {PLAIN_TEXT})"
        raise SparsityError(f"'{folder}' holds {kinds}; choose one of the two")
    return found[0] if len(found) == 1 else wanted[0]


def _needs_text(match: re.Match[str], num_classes: int, in_channels: int) -> nn.Module:
    raise SparsityError(f"{match.string} learns from text: train it with --data {TEXT}")


for _name in TEXT_NAMES:
    register_data(_name, _open)
for _network in _SUITS:
    register_family(
        Family(grammar=f"{_network}[-<multiplier>]", pattern=pattern(_network), build=_needs_text, examples=())
    )
register_task("text-classification", TextClassification())
register_task("language-modelling", LanguageModelling())
