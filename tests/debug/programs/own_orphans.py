"""Starts a Ray of its own; its servers end with their launcher, and it says something else, or says nothing."""

import sys
import time

import ray


@ray.remote(num_cpus=0)
class Server:
    def generate(self):
        return "text"


@ray.remote(num_cpus=0)
class Launcher:
    def launch(self):
        self.servers = [Server.remote() for _ in range(2)]
        ray.get([each.generate.remote() for each in self.servers])
        return self.servers


def build():
    return ray.get(Launcher.remote().launch.remote())


def main():
    ray.init(logging_level="ERROR")
    servers = build()
    while sys.argv[1:] == ["uncaught"]:
        ray.get(servers[0].generate.remote())
        time.sleep(0.1)
    while servers:
        try:
            ray.get(servers[0].generate.remote())
            time.sleep(0.1)
        except ray.exceptions.RayActorError:
            del servers[0]
    raise RuntimeError("all servers are out of memory")  # @raises


if __name__ == "__main__":
    main()
