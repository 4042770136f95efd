"""Ask a server as one asks the tasks: `Client` and `AsyncClient`, on httpx, without torch.

    >>> import bertie
    >>> client = bertie.Client("http://127.0.0.1:8000")
    >>> client.embed(["A text.", "Another."]).shape          # doctest: +SKIP
    (2, 384)

`requests.py` knows the routes and when to try again, `tasks.py` the methods; `synchronous.py` and `asynchronous.py`
do the sending.
"""

from bertie.client.asynchronous import AsyncClient
from bertie.client.requests import Retrying, ServerError
from bertie.client.synchronous import Client

__all__ = ["AsyncClient", "Client", "Retrying", "ServerError"]
