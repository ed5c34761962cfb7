"""Starts ipykernel so that an interrupt ends the cell that runs and nothing else.

ipykernel raises KeyboardInterrupt wherever it happens to be while it handles a cell: before the code begins or after
it has ended, the exception costs the reply, or the kernel. Here it is raised only if code of the cell is on the stack.
"""

import signal
import sys

del sys.path[0]  # this file's folder

from IPython.core.interactiveshell import InteractiveShell  # noqa: E402
from ipykernel.ipkernel import IPythonKernel  # noqa: E402
from ipykernel.kernelapp import IPKernelApp  # noqa: E402

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


class Kernel(IPythonKernel):
    """The stock kernel with another handler."""

    def pre_handler_hook(self):
        signal.signal(signal.SIGINT, interrupt)

    def post_handler_hook(self):
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class App(IPKernelApp):
    """The stock application with another kernel."""

    def initialize(self, argv=None):
        # The history is the session's own: kernels don't wait for each other's file.
        self.config.HistoryManager.hist_file = ":memory:"
        super().initialize(argv)


App.launch_instance(kernel_class=Kernel)
