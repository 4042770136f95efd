"""The server: every task behind HTTP, batched across clients.

The path of a request: `connection.py` (one client's turn) → `middleware.py` (who may, how much, how long) → a route
(`routes/`), with the request as a `Call` (service.py) → rows for the model → `scheduler.py` packs the rows of all
clients (queues.py) into batches and runs them in the model's own thread → the route makes the answer. `tasks.py`
declares what can be served, `app.py` puts it together, `run.py` listens, drains and restarts.

With several processes (processes.py) the road has two parts. A front (front.py) speaks HTTP and makes rows of texts; an
engine (engine_host.py) has the models and their queues. They talk through a socket (messages.py), and ids and vectors
lie in memory that both have (shared.py).
"""
