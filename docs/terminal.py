#!/usr/bin/env python3
"""A terminal client for celld.

    pip install websocket-client
    python docs/terminal.py http://127.0.0.1:44772            # a new terminal
    python docs/terminal.py http://127.0.0.1:44772 ID         # one that is there, taken over from who holds it
    python docs/terminal.py http://127.0.0.1:44772 ID --view  # only to look on

Ctrl-] leaves; the terminal stays. The access token, if there is one, is taken from CELLD_ACCESS_TOKEN.
"""

import json
import os
import select
import signal
import sys
import termios
import threading
import tty
import urllib.error
import urllib.request

import websocket

LEAVE = b"\x1d"
LAGGED = 4002


class Terminal:
    def __init__(self, url, session, view):
        self.url, self.view = url, view
        token = os.environ.get("CELLD_ACCESS_TOKEN")
        self.headers = {"Authorization": "Bearer " + token} if token else {}
        self.session = session or self.create()
        self.offset = 0
        self.exit_code = None
        self.connect()

    def create(self):
        size = os.get_terminal_size()
        body = json.dumps({"cols": size.columns, "rows": size.lines}).encode()
        headers = {"Content-Type": "application/json", **self.headers}
        with urllib.request.urlopen(urllib.request.Request(self.url + "/pty", body, headers)) as answer:
            return json.load(answer)["session_id"]

    def connect(self):
        mode = "mode=viewer" if self.view else "takeover=1"
        path = f"/pty/{self.session}/ws?since={self.offset}&{mode}"
        self.socket = websocket.create_connection(
            self.url.replace("http", "ws", 1) + path, header=[f"{k}: {v}" for k, v in self.headers.items()])

    def resize(self):
        size = os.get_terminal_size()
        self.socket.send(json.dumps({"type": "resize", "cols": size.columns, "rows": size.lines}))

    def type(self, resized):
        """Sends what is typed until Ctrl-], and the size whenever something can be read from resized."""
        try:
            while True:
                ready, _, _ = select.select([0, resized], [], [])
                if resized in ready:
                    os.read(resized, 65536)
                    self.resize()
                if 0 in ready:
                    data = os.read(0, 65536)
                    if not data or LEAVE in data:
                        break
                    if not self.view:
                        self.socket.send_binary(b"\x00" + data)
            self.socket.send_close()
        except (websocket.WebSocketException, OSError):
            pass  # show tells

    def show(self):
        """Shows output until the program ends or the connection is closed, and returns why."""
        while True:
            opcode, data = self.socket.recv_data()
            if opcode == websocket.ABNF.OPCODE_CLOSE:
                code = int.from_bytes(data[:2], "big")
                if code != LAGGED:
                    return data[2:].decode() or ("left" if code == 1000 else f"closed with {code}")
                self.connect()  # what was dropped meanwhile is gone, the newest MiB is not
            elif opcode == websocket.ABNF.OPCODE_TEXT:
                message = json.loads(data)
                if message["type"] == "exit":
                    self.exit_code = message["exit_code"]
            elif data[0] == 3:  # from before
                self.offset = int.from_bytes(data[1:9], "big")
                self.write(data[9:])
            else:
                self.write(data[1:])

    def write(self, data):
        self.offset += len(data)
        while data:
            data = data[os.write(1, data):]


def reason(error):
    """Tells what went wrong, in celld's words where it has answered."""
    try:
        body = error.read() if isinstance(error, urllib.error.HTTPError) else error.resp_body
        return json.loads(body)["message"]
    except (AttributeError, TypeError, ValueError, KeyError):
        return str(error)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if not (os.isatty(0) and os.isatty(1)):
        sys.exit("this is for a terminal: stdin or stdout is none")
    rest = [x for x in sys.argv[2:] if x != "--view"]
    url = sys.argv[1].rstrip("/")
    try:
        terminal = Terminal(url, rest[0] if rest else None, "--view" in sys.argv)
    except (websocket.WebSocketException, OSError, ValueError) as error:
        sys.exit(f"{url}: {reason(error)}")
    saved = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)  # what was typed ahead stays
    try:
        resized, told = os.pipe()
        if not terminal.view:
            os.set_blocking(told, False)
            signal.set_wakeup_fd(told)  # which is written to at once, whatever this thread waits for
            signal.signal(signal.SIGWINCH, lambda *_: None)
            terminal.resize()
        threading.Thread(target=terminal.type, args=[resized], daemon=True).start()
        why = terminal.show()
    except (websocket.WebSocketException, OSError) as error:
        why = reason(error)
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, saved)
    if terminal.exit_code is None:
        sys.exit(f"{why}; the terminal is {terminal.session}")
    sys.exit(terminal.exit_code)


if __name__ == "__main__":
    main()
