"""An editor debugs a rank through `attach --dap`: a client speaks the Debug Adapter Protocol over the socket."""

from __future__ import annotations

import json
import re
import secrets
import socket
import threading
from typing import Any

import pytest

from compose_sim.engine.lifetime.attach import relay_editor
from tests.builders import PATIENCE_S
from tests.cli.conftest import Project

SCRIPT = """import os
import time
answer = 41
go_on = os.environ["RANK"] != "1"
while not go_on:
    time.sleep(0.01)
print("answer", answer)
"""


class Client:
    """A client of the Debug Adapter Protocol."""

    def __init__(self, port: int) -> None:
        self.link = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.file = self.link.makefile("rb")
        self.seen: list[dict[str, Any]] = []
        self.sequence = 0

    def send(self, command: str, **arguments: Any) -> int:
        self.sequence += 1
        message = {"seq": self.sequence, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(message).encode()
        self.link.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        return self.sequence

    def wait(self, **fields: Any) -> dict[str, Any]:
        while True:
            for message in self.seen:
                if all(message.get(name) == value for name, value in fields.items()):
                    self.seen.remove(message)
                    assert message.get("success", True), message
                    return message.get("body") or {}
            length = 0
            while (line := self.file.readline()) != b"\r\n":
                assert line, self.seen
                length = int(line.split(b":")[1])
            self.seen.append(json.loads(self.file.read(length)))

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        return self.wait(type="response", request_seq=self.send(command, **arguments))


@pytest.mark.train
def test_an_editor_stops_a_running_rank(project: Project) -> None:
    run = f"editor-{secrets.token_hex(3)}"
    file = project.folder / project.write("train.py", SCRIPT)
    assert project.run("up", "--engine", "local", "--nodes", "2", "--detach", "--name", run, "train.py").returncode == 0
    attach = project.start("attach", "--rank", "1", "--now", "--dap", "0", "--run", run)
    assert attach.stderr is not None
    said, found = "", None
    while found is None:
        text = attach.stderr.readline()
        assert text, said
        said += text
        found = re.search(r"127\.0\.0\.1:(\d+)", said)
    port = int(found[1])

    client = Client(port)
    client.call("initialize", adapterID="debugpy", clientID="test", linesStartAt1=True, pathFormat="path")
    attached = client.send("attach", justMyCode=True, connect={"host": "127.0.0.1", "port": port})
    client.wait(type="event", event="initialized")
    (line,) = client.call("setBreakpoints", source={"path": str(file)}, breakpoints=[{"line": 7}])["breakpoints"]
    assert line["verified"]
    client.call("configurationDone")
    client.wait(type="response", request_seq=attached)
    thread = client.wait(type="event", event="stopped")["threadId"]
    frames = client.call("stackTrace", threadId=thread)["stackFrames"]
    assert [frame["source"]["path"] for frame in frames] == [str(file)], "none of composesim's own frames"
    assert frames[0]["line"] in (5, 6)
    client.call("evaluate", expression="go_on = True; answer = 43", frameId=frames[0]["id"], context="repl")
    client.call("continue", threadId=thread)
    stopped = client.wait(type="event", event="stopped")
    assert stopped["reason"] == "breakpoint"
    frame = client.call("stackTrace", threadId=thread)["stackFrames"][0]
    assert frame["line"] == 7
    assert client.call("evaluate", expression="answer + 1", frameId=frame["id"])["result"] == "44"
    client.call("disconnect", terminateDebuggee=False)
    client.file.close()
    client.link.close()

    attach.communicate(timeout=PATIENCE_S)
    assert attach.returncode == 0
    assert project.run("wait", "--run", run).returncode == 0
    assert "node-1 | answer 43" in project.run("logs", "--run", run).stdout


def test_what_the_adapter_says_first_is_kept_for_an_editor_that_connects_later() -> None:
    rank, link = socket.socketpair()
    with rank, link, socket.create_server(("127.0.0.1", 0)) as listener:
        rank.sendall(b"hello")  # before the relay starts, so that it always comes first
        relay = threading.Thread(target=relay_editor, args=(link, listener), daemon=True)
        relay.start()
        with socket.create_connection(listener.getsockname(), timeout=PATIENCE_S) as editor:
            assert editor.recv(5, socket.MSG_WAITALL) == b"hello"
        relay.join(PATIENCE_S)
        assert not relay.is_alive()
