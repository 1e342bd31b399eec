"""Processes that wait for each other over pipes and connections, in the way that the word says."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import ray

SERVER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
peer, _ = server.accept()
while True:
    peer.recv(1)
    sys.stdout.write("x" * 1000000)  # nobody reads it
    sys.stdout.flush()
    peer.send(b"y")
"""


@ray.remote(num_cpus=0)
class Launcher:
    def start(self):
        self.process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE)
        return int(self.process.stdout.readline())


@ray.remote(num_cpus=0)
class Client:
    def ask(self, port):
        with socket.create_connection(("127.0.0.1", port)) as peer:
            peer.send(b"x")
            return peer.recv(1)  # @asks


@ray.remote(num_cpus=0)
class Sender:
    def serve(self):
        self.connected = threading.Event()
        self.server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.take, daemon=True).start()
        return self.server.getsockname()[1]

    def take(self):
        self.peer, _ = self.server.accept()
        self.connected.set()

    def confirm(self):
        self.connected.wait()
        self.peer.recv(1)
        return self.peer.recv(1)  # @confirms


ray.init(**({} if os.environ.get("RAY_ADDRESS") else {"num_cpus": 1}))
if sys.argv[1] == "pipe":
    launcher = Launcher.remote()
    ray.get(Client.remote().ask.remote(ray.get(launcher.start.remote())))
else:
    sender = Sender.remote()
    asked = Client.remote().ask.remote(ray.get(sender.serve.remote()))
    ray.wait([asked], timeout=2)
    ray.get(sender.confirm.remote())
