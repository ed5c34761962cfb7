"""Starts bash_kernel with two differences.

Lines end as programs write them: the terminal that bash is on leaves "\\n" alone. bash_kernel takes "\\r\\n" back, but
not when it reads the two in two pieces.

What is printed faster than the Jupyter Server reads waits; ipykernel's socket would drop it.
"""

import ipykernel.kernelapp
import zmq
from bash_kernel.kernel import BashKernel
from ipykernel.iostream import IOPubThread
from ipykernel.kernelapp import IPKernelApp


class Kernel(BashKernel):
    """The stock kernel on a terminal of another setting."""

    def _start_bash(self):
        super()._start_bash()
        self.bashwrapper.run_command("stty -onlcr")


class Publisher(IOPubThread):
    """The stock publisher, which waits when ZeroMQ has no room for a message (XPUB_NODROP, zmq_setsockopt(3))."""

    def __init__(self, socket, **kwargs):
        socket.setsockopt(zmq.XPUB_NODROP, 1)
        super().__init__(socket, **kwargs)


ipykernel.kernelapp.IOPubThread = Publisher
IPKernelApp.launch_instance(kernel_class=Kernel)
