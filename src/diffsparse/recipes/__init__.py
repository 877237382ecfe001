"""Tables of runs as data: what is trained at which size, what others have reported, and how the two compare."""

from diffsparse.recipes.book import Book, read_book
from diffsparse.recipes.table import Claim, Row, Size, Table

__all__ = ["Book", "Claim", "Row", "Size", "Table", "read_book"]
