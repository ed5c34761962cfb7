"""Starts ipykernel with four differences.

An interrupt ends the cell that runs and nothing else: ipykernel raises KeyboardInterrupt wherever it happens to be
while it handles a cell, and before the code begins or after it has ended the exception costs the reply, or the
kernel. Here it is raised only if code of the cell is on the stack.

Much output comes as many messages of a moderate size instead of one for each fifth of a second, and printing waits
until they are under way: so whoever is on their way needs little memory.

Cells may replace, close or delete sys.stdout and sys.stderr. ipykernel flushes them around a request, and a flush that
fails would cost the reply: here it costs nothing.

What is printed and shown faster than the Jupyter Server reads waits; ipykernel's socket would drop it.
"""

import codecs
import contextlib
import os
import select
import signal
import sys
import threading
import traceback
import types

del sys.path[0]  # this file's folder

import ipykernel.displayhook  # noqa: E402
import ipykernel.kernelapp  # noqa: E402
import ipykernel.kernelbase  # noqa: E402
import ipykernel.zmqshell  # noqa: E402
import zmq  # noqa: E402
from IPython.core.interactiveshell import InteractiveShell  # noqa: E402
from ipykernel.iostream import IOPubThread, OutStream  # noqa: E402
from ipykernel.ipkernel import IPythonKernel  # noqa: E402
from ipykernel.kernelapp import IPKernelApp  # noqa: E402
from ipykernel.zmqshell import ZMQDisplayPublisher, ZMQInteractiveShell  # noqa: E402
from traitlets import Type  # noqa: E402

RUN_CODE = InteractiveShell.run_code.__code__


def runs_cell(frame):
    """Say whether frame was called by code of a cell, however deep."""
    while frame is not None:
        caller = frame.f_back
        if (
            caller is not None
            and caller.f_code is RUN_CODE
            and caller.f_locals.get("code_obj") is frame.f_code
        ):
            return True
        frame = caller
    return False


def interrupt(signum, frame):
    """Handle SIGINT while a request is handled."""
    if runs_cell(frame):
        raise KeyboardInterrupt


class Stream(OutStream):
    """The stock stream, flushed whenever it holds LIMIT characters.

    What programs and libraries write to the descriptor comes through a pipe that a thread reads. The end of a
    cell reads it too: what was written before is the cell's, and comes before its value.
    """

    LIMIT = 512 * 1024
    PIPE = 64 * 1024
    held = 0

    def _setup_stream_redirects(self, name):
        self.piped = threading.RLock()  # guards the reading of the pipe
        self.decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        super()._setup_stream_redirects(name)

    def _watch_pipe_fd(self):
        try:
            os.set_blocking(self._fid, False)
            ready = select.poll()
            ready.register(self._fid, select.POLLIN)
            while self._should_watch:
                ready.poll()
                self.drain()
        except Exception:
            self._exc = sys.exc_info()

    def drain(self, final=False):
        """Write what is in the pipe; final also half a character."""
        with self.piped:
            while self._should_watch:
                try:
                    data = os.read(self._fid, self.PIPE)
                except BlockingIOError:
                    break
                if not data:  # somebody has closed the descriptor
                    self._should_watch = False
                self.write(self.decode(data))
                os.write(self._original_stdstream_copy, data)
            if final and (rest := self.decode(b"", True)):
                self.write(rest)

    def write(self, string):
        if isinstance(string, str):
            try:
                string.encode()
            except UnicodeEncodeError:  # half a character: the stock stream would lose all that it holds
                string = string.encode(errors="backslashreplace").decode()
        if not isinstance(string, str) or self.held + len(string) < self.LIMIT:
            written = super().write(string)
            self.held += written
            return written
        for start in range(0, len(string), self.LIMIT):
            self.held = 0
            super().write(string[start : start + self.LIMIT])
            self.flush()
        return len(string)

    def flush(self):
        self.held = 0
        super().flush()

    def settle(self):
        """Flush, with what others have written to the descriptor."""
        if self._should_watch:
            self.drain(final=True)
        self.flush()

    def close(self):
        if runs_cell(sys._getframe()):  # later cells print all the same
            self.flush()
        else:
            super().close()


class Standard:
    """A standard stream as ipykernel uses it: the kernel's own, and what a cell may have put in its place."""

    def __init__(self, name):
        self.name = name
        self.own = getattr(sys, name)

    def flush(self):
        """Flush both; one that fails has lost what it held, and nothing else."""
        for flush in self.own.settle, getattr(getattr(sys, self.name, None), "flush", None):
            try:
                if flush is not None:
                    flush()
            except Exception:
                pass
            except BaseException:
                if runs_cell(sys._getframe()):
                    raise  # an interrupt of the cell

    def set_parent(self, parent):
        """Have the kernel's own stream print for another cell, whatever stands in its place now."""
        self.own.set_parent(parent)

    def __getattr__(self, name):
        return getattr(self.own, name)


class System(types.ModuleType):
    """The module sys with other standard streams."""

    def __init__(self):
        super().__init__("sys")
        self.stdout = Standard("stdout")
        self.stderr = Standard("stderr")

    def __getattr__(self, name):
        return getattr(sys, name)


class Displays(ZMQDisplayPublisher):
    """The stock publisher; what a thread or a task shows belongs to the cell that began it, as what it prints does."""

    @property
    def parent_header(self):
        """The header of that cell's request."""
        return self.shell.kernel._stdout.parent_header

    @parent_header.setter
    def parent_header(self, header):
        pass  # the stream is told as well


class Shell(ZMQInteractiveShell):
    """The stock shell with another publisher; it keeps no copy of all that cells print."""

    display_pub_class = Type(Displays)

    def _tee(self, channel):
        return contextlib.nullcontext()


class Kernel(IPythonKernel):
    """The stock kernel with another shell and another handler."""

    shell_class = Type(Shell)

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        system = System()
        for module in ipykernel.kernelbase, ipykernel.displayhook, ipykernel.zmqshell:
            module.sys = system

    async def do_execute(self, *args, **kwargs):
        """Run a cell; what fails around it is the cell's failure, not the loss of the reply."""
        try:
            return await super().do_execute(*args, **kwargs)
        except Exception as e:
            return {
                "status": "error",
                "ename": type(e).__name__,
                "evalue": str(e),
                "traceback": traceback.format_exc().splitlines(),
                "execution_count": self.shell.execution_count,
                "user_expressions": {},
                "payload": [],
            }

    def pre_handler_hook(self):
        signal.signal(signal.SIGINT, interrupt)

    def post_handler_hook(self):
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class Publisher(IOPubThread):
    """The stock publisher, which waits when ZeroMQ has no room for a message (XPUB_NODROP, zmq_setsockopt(3))."""

    def __init__(self, socket, **kwargs):
        socket.setsockopt(zmq.XPUB_NODROP, 1)
        super().__init__(socket, **kwargs)


ipykernel.kernelapp.IOPubThread = Publisher


class App(IPKernelApp):
    """The stock application with another kernel and other streams."""

    def initialize(self, argv=None):
        self.outstream_class = "__main__.Stream"
        # The history is the session's own: kernels don't wait for each other's file.
        self.config.HistoryManager.hist_file = ":memory:"
        super().initialize(argv)


App.launch_instance(kernel_class=Kernel)
