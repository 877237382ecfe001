"""Text: sentences to classify and plain text to continue, as bytes; data sets, tasks and names of networks."""

from diffsparse.models.transformer import LanguageModel, TextClassifier
from diffsparse.text.data import PlainTextData, SentenceData, open_plain_text, open_sentences

__all__ = [
    "LanguageModel",
    "PlainTextData",
    "SentenceData",
    "TextClassifier",
    "open_plain_text",
    "open_sentences",
]
