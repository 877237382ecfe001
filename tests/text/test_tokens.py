import torch

from diffsparse.text.tokens import START, byte_tokens, padded


def test_bytes_are_tokens() -> None:
    content = "né\x7f".encode()
    assert byte_tokens(content).tolist() == list(content)
    assert byte_tokens(content).dtype == torch.uint8
    assert byte_tokens(b"").shape == (0,)


def test_texts_start_with_a_token_and_end_with_padding() -> None:
    tokens = padded([b"", b"abc", b"abcdefg"], 5)
    assert tokens.tolist() == [
        [START, 0, 0, 0, 0],
        [START, 97, 98, 99, 0],
        [START, 97, 98, 99, 100],
    ]
