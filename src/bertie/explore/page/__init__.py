"""The page over the library: what it asks of a session (queries.py), the walk (walk.py), a page in one file (saved.py).

`static/` holds the built page; its sources are in web/, and `make web` builds them. The server shows the same page.
"""

from __future__ import annotations

from pathlib import Path

STATIC = Path(__file__).parent / "static"
