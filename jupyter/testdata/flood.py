"""Runs a cell that shows much, begins to read when all of it has been shown, and prints how much of it there was.

It is more than ZeroMQ keeps on both sides, 2,000 messages and what the system's buffers hold, and less than ipykernel
lets a cell be ahead.
"""

import os
import sys

from jupyter_client.manager import KernelManager

CELL = """
import sys
publisher = get_ipython().display_pub
for i in range(3000):  # as display() does, which waits for each to be under way
    content = {'data': {'text/plain': f'{i:20000}'}, 'metadata': {}}
    publisher.session.send(publisher.pub_socket, 'display_data', content, parent=publisher.parent_header, ident=publisher.topic)
sys.stdout.flush_timeout = 0.5  # what ZeroMQ takes is under way after that
sys.stdout.flush()
with open('shown', 'w'): pass
"""

os.mkfifo("shown")
manager = KernelManager(kernel_name="python3")
manager.start_kernel(stderr=sys.stderr.fileno())
client = manager.client()
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
