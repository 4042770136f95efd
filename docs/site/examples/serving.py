# %%
from bertie.client import Client
from bertie.serve.run import Running
from bertie.serve.settings import ModelChoice, Settings

# %% Running, Settings, ModelChoice, Client
models = (ModelChoice("mini", "bertie-mini"),)
with Running(Settings(models=models, port=0, log_level="error")) as server, Client(server.url) as client:
    print(client.models(), client.fill("He drank a cup of [MASK].").candidates[0].token)
# → ['mini'] wine

# %% AsyncClient
import asyncio
from bertie import AsyncClient


async def ask(url):
    async with AsyncClient(url) as client:
        return await client.next_sentence("She opened the door.", "The room was empty.")


with Running(Settings(models=models, port=0, log_level="error")) as server:
    print(asyncio.run(ask(server.url)).follows)
# → True

# %% Limits
from bertie.serve.settings import Limits

print(Settings(models=models, limits=Limits(batch=64)).limits.batch)  # texts of one request
# → 64

# %% Retrying, ServerError
from bertie.client import Retrying, ServerError

print(Retrying(attempts=3).attempts)
# → 3
try:
    Client("http://127.0.0.1:9", attempts=1).embed("A text.")
except ServerError as error:
    print(error.status)
# → None
