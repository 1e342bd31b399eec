"""What the smoke test's Ray starts in place of a worker: it asks the warm process to fork one and stands in for it.

Standard library only, and as little of it as will do: this runs once per worker, before anything else does.
"""

import os
import signal
import socket
import sys


def main() -> None:
    """Hands over arguments, environment and standard streams; leaves with the worker's exit code, or takes it along."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["DEVKIT_WARM_SOCKET"])
    environment = "\0".join(f"{name}={value}" for name, value in os.environ.items())
    message = "\1".join(["\0".join(sys.argv), environment, os.getcwd()]).encode()
    socket.send_fds(connection, [len(message).to_bytes(8, "big")], [0, 1, 2])
    connection.sendall(message)
    worker = int.from_bytes(connection.recv(8), "big")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda caught, _frame: os.kill(worker, caught))
    code = connection.recv(8)  # arrives when the worker has ended
    os._exit(int.from_bytes(code, "big") if code else 1)


if __name__ == "__main__":
    main()
