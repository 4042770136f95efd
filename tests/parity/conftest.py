import pytest

pytest.importorskip("transformers", reason="the oracle (extra 'parity') is not installed")
