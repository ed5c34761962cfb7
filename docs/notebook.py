#!/usr/bin/env python3
"""A small notebook client over celld's WebSocket.

    pip install websocket-client
    python docs/notebook.py http://127.0.0.1:44772 [LANGUAGE]

Type a cell and end it with an empty line. Outputs show as they come; Ctrl-C interrupts the cell; what a cell asks for by
input() is read from the terminal. Ctrl-D ends. The access token, if there is one, is taken from CELLD_ACCESS_TOKEN.
"""

import getpass
import json
import os
import signal
import sys
import threading

import websocket


class Notebook:
    def __init__(self, url, language):
        token = os.environ.get("CELLD_ACCESS_TOKEN")
        header = ["Authorization: Bearer " + token] if token else []
        self.socket = websocket.create_connection(url.replace("http", "ws", 1) + "/ws", header=header)
        self.language = language
        self.cells = 0
        self.running = None
        self.sending = threading.Lock()

    def send(self, **message):
        with self.sending:
            self.socket.send(json.dumps(message))

    def run(self, code):
        """Runs a cell and shows its events up to the last one."""
        self.cells += 1
        ref = f"cell-{self.cells}"
        self.running = ref
        self.send(op="run", ref=ref, kind="code", code=code, context={"language": self.language}, stdin=True)
        while True:
            event = json.loads(self.socket.recv())
            if event.get("ref") == ref and self.show(event, ref):
                return

    def interrupt(self, *_):
        """Ends the running cell. It is called wherever the program is, so what it sends goes out on a thread of its own."""
        threading.Thread(target=self.stop).start()

    def stop(self):
        try:
            self.send(op="interrupt", ref=self.running)
        except (websocket.WebSocketException, OSError):
            pass  # whoever reads from it tells

    def show(self, event, ref):
        """Shows one event and tells whether it was the last."""
        kind = event["type"]
        if kind == "stdout":
            print(event["text"], end="", flush=True)
        elif kind == "stderr":
            print(event["text"], end="", file=sys.stderr, flush=True)
        elif kind == "result":
            count, results = event.get("execution_count"), event["results"]
            other = [mime for mime in results if mime not in ("text", "text/plain")]
            print(f"Out[{count}]: " if count else "", results.get("text/plain", ""), *other, flush=True)
        elif kind == "status":
            print("*", event["state"], event.get("detail", ""), file=sys.stderr, flush=True)
        elif kind == "input_request":
            ask = getpass.getpass if event["password"] else input
            try:
                self.send(op="input", ref=ref, value=ask(event["prompt"]))
            except EOFError:  # nobody is there to type
                self.send(op="interrupt", ref=ref)
        elif kind == "refused":  # what was asked about the cell could not be done; the cell goes on
            print("*", event["op"], "refused:", event["error"]["evalue"], file=sys.stderr, flush=True)
        elif kind == "error":
            print("\n".join(event["error"]["traceback"]), file=sys.stderr, flush=True)
        return kind in ("error", "execution_complete")


def cells(lines):
    """Yields the cells in lines: runs of lines that are not empty."""
    cell = []
    for line in lines:
        if line.strip():
            cell.append(line)
        elif cell:
            yield "".join(cell)
            cell = []
    if cell:
        yield "".join(cell)


def reason(error):
    """Tells what went wrong, in celld's words where it has answered."""
    try:
        return json.loads(error.resp_body)["message"]
    except (AttributeError, TypeError, ValueError, KeyError):
        return str(error)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    url = sys.argv[1].rstrip("/")
    try:
        notebook = Notebook(url, sys.argv[2] if len(sys.argv) > 2 else "python")
        signal.signal(signal.SIGINT, notebook.interrupt)
        for cell in cells(iter(sys.stdin.readline, "")):
            notebook.run(cell)
    except (websocket.WebSocketException, OSError, ValueError) as error:
        sys.exit(f"{url}: {reason(error)}")


if __name__ == "__main__":
    main()
