"""Commands that train."""
