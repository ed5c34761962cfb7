"""What the checks of the Python SDKs share.

A script is called with sync or async, the address of a lifecycle server, and a folder for its files. It prints a line
for each check and ends with status 1 at the first that is wrong. The asynchronous SDK is driven through the same calls
as the other: each waits for a loop in a thread of its own.
"""

import asyncio
import concurrent.futures
import inspect
import logging
import os
import sys
import threading
import traceback
import urllib.request
from datetime import timedelta

from opensandbox.config import ConnectionConfig
from opensandbox.config.connection_sync import ConnectionConfigSync
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.execd import ExecutionHandlers
from opensandbox.models.execd_sync import ExecutionHandlersSync
from opensandbox.sandbox import Sandbox
from opensandbox.sync.sandbox import SandboxSync

logging.disable(logging.CRITICAL)  # the SDKs log each error that the checks provoke


def wrong(name, seen):
    print(f"WRONG {name}: {seen}", flush=True)
    os._exit(1)  # whatever still runs


def check(name, ok, seen=None):
    """Report a check; seen is what was found instead."""
    if not ok:
        wrong(name, repr(seen))
    print(f"ok    {name}", flush=True)


def same(name, got, want):
    """Check that got equals want."""
    check(name, got == want, f"{got!r}, want {want!r}")


def refused(name, status, call):
    """Check that the call is answered with a status that the SDK reports."""
    try:
        got = call()
    except SandboxApiException as e:
        same(name, e.status_code, status)
        return e
    wrong(name, f"not refused but {got!r}")


class Loop:
    """An event loop in a thread."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def wait(self, awaitable):
        async def run():
            return await awaitable

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result()


class Waiting:
    """An asynchronous object whose methods wait."""

    def __init__(self, target, loop):
        self._target, self._loop = target, loop

    def __getattr__(self, name):
        value = getattr(self._target, name)
        if inspect.isroutine(value):
            def call(*args, **kw):
                result = value(*args, **kw)
                return self._loop.wait(result) if inspect.isawaitable(result) else result

            return call
        if type(value).__module__.split(".")[0] in ("opensandbox", "code_interpreter") and not hasattr(value, "model_fields"):
            return Waiting(value, self._loop)
        return value


class SDK:
    """One of the two Python SDKs, sync or async, connected to a sandbox."""

    def __init__(self, kind, domain):
        self.kind = kind
        if kind == "sync":
            config = ConnectionConfigSync(domain=domain, protocol="http", api_key="key", request_timeout=timedelta(minutes=2))
            self.sandbox = SandboxSync.connect("the-sandbox", connection_config=config)
        else:
            self.loop = Loop()
            config = ConnectionConfig(domain=domain, protocol="http", api_key="key", request_timeout=timedelta(minutes=2))
            self.sandbox = Waiting(self.loop.wait(Sandbox.connect("the-sandbox", connection_config=config)), self.loop)
        self.endpoint = self.sandbox.get_endpoint(44772)

    def interpreter(self, **options):
        """The code interpreter of the sandbox."""
        from code_interpreter import CodeInterpreter, CodeInterpreterSync

        if self.kind == "sync":
            return CodeInterpreterSync.create(self.sandbox, **options)
        return Waiting(self.loop.wait(CodeInterpreter.create(self.sandbox._target, **options)), self.loop)

    def handlers(self, note, **options):
        """Handlers that call note with the name of the event and what the SDK made of it."""
        names = ["init", "stdout", "stderr", "result", "error", "execution_complete"]
        if self.kind == "sync":
            return ExecutionHandlersSync(**{f"on_{n}": lambda e, n=n: note(n, e) for n in names}, **options)

        def handler(name):
            async def handle(e):
                note(name, e)

            return handle

        return ExecutionHandlers(**{f"on_{n}": handler(n) for n in names}, **options)

    def start(self, run, *args, **kw):
        """Begin a run in the background; returns its id, once there is one, and its future."""
        began = concurrent.futures.Future()
        seen = concurrent.futures.Future()

        def note(name, e):
            if name == "init":
                began.set_result(e.id)
            if name == "stdout" and not seen.done():
                seen.set_result(e.text)

        future = concurrent.futures.ThreadPoolExecutor(1).submit(lambda: run(*args, handlers=self.handlers(note), **kw))
        concurrent.futures.wait([began, future], return_when=concurrent.futures.FIRST_COMPLETED)
        if not began.done():
            future.result()
            wrong("a run begins with its id", "no init")
        return began.result(), future, seen

    def ended(self, command):
        """Wait until a background command has ended, which the SDKs can't."""
        request = urllib.request.Request(
            f"http://{self.endpoint.endpoint}/command/{command}/wait", b'{"exit": true}',
            {"Content-Type": "application/json", **self.endpoint.headers})
        urllib.request.urlopen(request).read()


def main(checks):
    """Run checks(sdk, folder) as the command line says."""
    kind, domain, folder = sys.argv[1:4]
    try:
        checks(SDK(kind, domain), folder)
    except Exception:
        traceback.print_exc()
        wrong("the calls return", "the exception above")
    print("done", flush=True)


def out(execution):
    """The texts of stdout's events."""
    return [m.text for m in execution.logs.stdout]


def err(execution):
    """The texts of stderr's events."""
    return [m.text for m in execution.logs.stderr]
