"""The errors and warnings that users of the package see."""


class SparsityError(ValueError):
    """A mistake in how the package was called; the message names the value and what was expected."""


class SparsityWarning(UserWarning):
    """Something was done that the caller may not have meant; the message names the layer."""
