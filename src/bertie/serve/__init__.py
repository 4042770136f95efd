"""The server: every task behind HTTP, batched across clients.

The road of a request: `connection.py` (one client's turn) → `middleware.py` (who may, how much, how long) → a route
(`routes/`), with the request as a `Call` (service.py) → `runners.py` turns texts into rows → `scheduler.py` packs the
rows of all clients into batches and runs them in the model's own thread → the route makes the answer. `tasks.py`
declares what can be served, `app.py` puts it together, `run.py` listens, drains and restarts.
"""
