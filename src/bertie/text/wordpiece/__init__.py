"""WordPiece: the algorithm to be read, the same in C++, and vocabularies."""
