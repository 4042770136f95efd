"""Search: a corpus embedded on the disk, and the texts nearest to a query."""
