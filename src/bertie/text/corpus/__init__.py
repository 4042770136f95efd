"""Raw text for pretraining: documents, sentences, pairs, in several processes."""
