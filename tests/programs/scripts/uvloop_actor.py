"""An async actor, whose event loop Ray takes from uvloop where that is installed.

Two calls of it overlap: neither sees what the other one pays.
"""

import asyncio

import ray


@ray.remote
class Account:
    def __init__(self):
        self.money = 0
        self.both = asyncio.Barrier(2)

    async def loop(self):
        return type(asyncio.get_running_loop()).__module__

    async def pay(self, amount):
        before = self.money
        await self.both.wait()
        self.money = before + amount  # @pay
        return self.money


if __name__ == "__main__":
    ray.init()
    account = Account.remote()
    print("loop", ray.get(account.loop.remote()), flush=True)
    print("money", ray.get([account.pay.remote(amount) for amount in (1, 10)]), flush=True)
