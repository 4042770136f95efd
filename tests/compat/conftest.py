from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="the oracle (extra 'compat') is not installed")
