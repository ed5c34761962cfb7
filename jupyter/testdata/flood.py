"""Runs a cell that shows much, begins to read when all of it has been shown, and prints how much of it there was.

It is more than what is kept on the way, 1,000 messages at the kernel and the system's buffers, and less than the 2,000
messages which ipykernel lets a cell be ahead: so the cell ends without a reader.
"""

import os
import sys

import zmq
from jupyter_client.manager import KernelManager

CELL = """
import sys
publisher = get_ipython().display_pub
for i in range(1900):  # as display() does, which waits for each to be under way
    content = {'data': {'text/plain': f'{i:40000}'}, 'metadata': {}}
    publisher.session.send(publisher.pub_socket, 'display_data', content, parent=publisher.parent_header, ident=publisher.topic)
sys.stdout.flush_timeout = 0.5  # what ZeroMQ takes is under way after that
sys.stdout.flush()
with open('shown', 'w'): pass
"""

os.mkfifo("shown")
manager = KernelManager(kernel_name="python3")
manager.start_kernel(stderr=sys.stderr.fileno())
client = manager.client()
client.context.setsockopt(zmq.RCVHWM, 1)  # of the sockets to come
client.start_channels()
client.wait_for_ready()
cell = client.execute(CELL)
with open("shown"):
    pass
shown = 0
while True:
    message = client.get_iopub_msg(timeout=60)
    if message["parent_header"].get("msg_id") != cell:
        continue
    if message["msg_type"] == "error":
        sys.exit(str(message["content"]))
    shown += message["msg_type"] == "display_data"
    if message["content"].get("execution_state") == "idle":
        break
print(shown)
client.stop_channels()
manager.shutdown_kernel(now=True)
