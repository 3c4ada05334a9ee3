"""A TCP relay of limited rate, between a server and the nodes that join from it: devp2p does not notice
it, but that the link is slow."""

import contextlib
import re
import socket
import threading
import time

PIECE = 16 << 10


class Relay:
    """Passes connections on to the peer with this enode URL; answers come at `rate` MiB a second in all."""

    def __init__(self, enode, rate):
        self.port = int(re.search(r":(\d+)$", enode)[1])
        self.rate, self.next, self.lock = rate * (1 << 20), 0.0, threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.enode = re.sub(r":\d+$", f":{self.listener.getsockname()[1]}", enode)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                near.close()
                continue
            for source, target, is_limited in [(far, near, True), (near, far, False)]:
                threading.Thread(target=self.copy, args=(source, target, is_limited), daemon=True).start()

    def copy(self, source, target, is_limited):
        try:
            while piece := source.recv(PIECE):
                if is_limited:
                    self.wait(len(piece))
                target.sendall(piece)
        except OSError:
            pass
        for end in source, target:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def wait(self, size):
        """Waits until it is the turn of so many bytes."""
        with self.lock:
            now = time.monotonic()
            turn = max(self.next, now)
            self.next = turn + size / self.rate
        time.sleep(max(0.0, turn - now))

    def close(self):
        self.listener.close()
