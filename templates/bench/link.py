"""What does the link between two nodes carry? `composesim bench --link` runs this as two ranks; the second one measures.

    link.py SECONDS DATAGRAMS

Prints one line of JSON: bits a second each way, the seconds of a round trip, and the share of DATAGRAMS that was lost.
"""

import json
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable

PORT = 5201
STREAMS = 4  # one alone may be held back by its own window where packets take long
WARM_UP_S = 0.5  # the kernel's buffers fill, and what may leave at once has left
PINGS = 100
DATAGRAMS_A_SECOND = 4000
CHUNK = bytes(1 << 16)


def serve(seconds: float) -> None:
    """The first rank: does what each connection asks for, until it is told that all is done."""
    counter = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    counter.bind(("", PORT))
    done, received, streams = threading.Event(), [0], []
    threading.Thread(target=count_datagrams, args=(counter, received), daemon=True).start()
    with socket.create_server(("", PORT), backlog=16) as server:
        while not done.is_set():
            connection, _ = server.accept()
            task = connection.recv(1)
            if task == b"e":
                echo(connection)
            elif task == b"s":
                threading.Thread(target=send_on, args=(connection,), daemon=True).start()
            elif task == b"r":
                streams.append(connection)
                if len(streams) == STREAMS:
                    rate = measure(streams, seconds)
                    for stream in streams:
                        stream.sendall(json.dumps(rate).encode() + b"\n")
            elif task == b"c":
                connection.sendall(json.dumps(received[0]).encode() + b"\n")
                done.set()


def count_datagrams(counter: socket.socket, received: list[int]) -> None:
    while True:
        counter.recv(2048)
        received[0] += 1


def echo(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := connection.recv(1):
        connection.sendall(data)


def send_on(connection: socket.socket) -> None:
    """Send until nobody listens any more."""
    try:
        while True:
            connection.sendall(CHUNK)
    except OSError:
        connection.close()


def measure(streams: list[socket.socket], seconds: float) -> float:
    """Bits a second that arrive on these together."""
    arrived = [0] * len(streams)

    def receive(number: int) -> None:
        while not over.is_set():
            arrived[number] += len(streams[number].recv(1 << 20))

    over = threading.Event()
    for number in range(len(streams)):
        threading.Thread(target=receive, args=(number,), daemon=True).start()
    time.sleep(WARM_UP_S)
    began, before = time.monotonic(), sum(arrived)
    time.sleep(seconds)
    rate = 8 * (sum(arrived) - before) / (time.monotonic() - began)
    over.set()
    return rate


def dial(task: bytes) -> socket.socket:
    """A connection to the first rank, which may not listen yet."""
    deadline = time.monotonic() + 60
    while True:
        try:
            connection = socket.create_connection(("node-0", PORT), timeout=10)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    connection.settimeout(None)
    connection.sendall(task)
    return connection


def round_trip() -> float:
    """Seconds of the middle one of many round trips."""
    with dial(b"e") as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = []
        for _ in range(PINGS):
            began = time.monotonic()
            connection.sendall(b".")
            connection.recv(1)
            trips.append(time.monotonic() - began)
    return statistics.median(trips)


def to_here(seconds: float) -> float:
    streams = [dial(b"s") for _ in range(STREAMS)]
    rate = measure(streams, seconds)
    for stream in streams:
        stream.close()
    return rate


def from_here(seconds: float) -> float:
    streams = [dial(b"r") for _ in range(STREAMS)]
    for stream in streams:
        threading.Thread(target=send_on, args=(stream,), daemon=True).start()
    with streams[0].makefile() as answer:
        return float(answer.readline())


def lost_share(datagrams: int) -> float:
    """The share of small datagrams that never arrived, sent so slowly that none has to wait."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect(("node-0", PORT))
        began = time.monotonic()
        for number in range(datagrams):
            sender.send(b"datagram")
            time.sleep(max(0.0, began + number / DATAGRAMS_A_SECOND - time.monotonic()))
    time.sleep(1)  # the last ones are on their way
    with dial(b"c") as connection, connection.makefile() as answer:
        arrived = int(answer.readline())
    return 1 - arrived / datagrams if datagrams else 0.0


def main(seconds: float, datagrams: int) -> None:
    """Either half."""
    if os.environ["RANK"] == "0":
        serve(seconds)
        return
    trip = round_trip()
    rates: dict[str, Callable[[float], float]] = {"to_node_1": to_here, "to_node_0": from_here}
    measured = {name: rate(seconds) for name, rate in rates.items()}
    print(json.dumps({"step": 1, "round_trip_s": trip, "lost_share": lost_share(datagrams), **measured}), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
