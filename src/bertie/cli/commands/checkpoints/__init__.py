"""Commands about checkpoints: what is in one, another format, whether it computes what it should."""
