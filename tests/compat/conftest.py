from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("transformers", reason="the oracle (extra 'compat') is not installed")


@pytest.fixture(autouse=True)
def _no_settings_of_another_test() -> Iterator[None]:
    yield
    from compat.hub_cases import forget_accelerate

    forget_accelerate()
