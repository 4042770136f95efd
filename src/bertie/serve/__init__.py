"""The server: every task behind HTTP, batched across clients.

The road of a request: `gate.py` (who may, how much, how long) → a route (`routes_*.py`) → `models.py` turns texts into
rows → `scheduler.py` packs the rows of all clients into batches and runs them in the model's own thread → the route
makes the answer. `app.py` puts it together, `run.py` listens, drains and restarts.
"""
