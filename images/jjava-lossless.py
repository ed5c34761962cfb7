"""Makes the publisher of the jjava in the given jar wait where it would drop.

Its ZeroMQ keeps 1,000 messages for a reader that is slower, and drops what comes after them: a cell that prints much
would lose output, or its end. A socket option says so (XPUB_NODROP, zmq_setsockopt(3)), which jjava has no way to set:
here the field behind it begins as if it were set.
"""

import os
import sys
import zipfile

CLASS = "org/dflib/jjava/shaded/zmq/socket/pubsub/XPub.class"
LOSSY = bytes.fromhex("2a 04 b5 00 45")  # aload_0, iconst_1, putfield lossy: in the constructor
LOSSLESS = bytes.fromhex("2a 03 b5 00 45")  # aload_0, iconst_0, putfield lossy

jar = sys.argv[1]
changed = jar + ".new"
with zipfile.ZipFile(jar) as old, zipfile.ZipFile(changed, "w") as new:
    for entry in old.infolist():
        content = old.read(entry)
        if entry.filename == CLASS:
            if content.count(LOSSY) != 1:
                sys.exit(f"{jar}: {CLASS} is not the one that is known")
            content = content.replace(LOSSY, LOSSLESS)
        new.writestr(entry, content)
os.replace(changed, jar)
