"""Ray Serve: an async handler that is asked over HTTP, and answers with an error what it cannot read."""

import asyncio
import sys

import requests
from ray import serve


@serve.deployment
class Greeter:
    async def greet(self, name):
        await asyncio.sleep(0.01)
        words = name.split()
        return f"hello {words[0]}"  # @greet

    async def __call__(self, request):
        return await self.greet(request.query_params["name"])


if __name__ == "__main__":
    port = int(sys.argv[1])
    serve.start(http_options={"port": port})
    serve.run(Greeter.bind())
    for name in ("ada lovelace", "alan turing", " "):
        answer = requests.get(f"http://127.0.0.1:{port}/", params={"name": name}, timeout=600)
        print(answer.status_code, answer.text, flush=True)
    serve.shutdown()
