"""Lets a test say what a Ray program does next, through a socket: each connection brings Python and takes its value."""

import ast
import json
import select
import signal
import socket
import threading
import traceback


def run(source, names):
    """What the last expression of the source gives."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<stage>", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "<stage>", "eval"), names)


def _wait(server, woken, wakes):
    """Until somebody connects. A signal that comes just before a call that blocks is not heard by Python until that
    call returns: so each one wakes this up. Set each time, as what is run may have set another (asyncio does).
    """
    wakes.setblocking(False)
    if threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    while server not in (ready := select.select([server, woken], [], [])[0]):
        if woken in ready:
            woken.recv(4096)


def serve(path, names):
    """Until it is told nothing."""
    woken, wakes = socket.socketpair()
    with socket.socket(socket.AF_UNIX) as server, woken, wakes:
        server.bind(path)
        server.listen()
        while True:
            _wait(server, woken, wakes)
            there, _ = server.accept()
            with there, there.makefile("r") as words:
                source = words.read()
                if not source:
                    return
                try:
                    answer = {"value": run(source, names)}
                except Exception:  # noqa: BLE001 - whatever it is, the test is told
                    answer = {"error": traceback.format_exc()}
                there.sendall(json.dumps(answer, default=repr).encode())
