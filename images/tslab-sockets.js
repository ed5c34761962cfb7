// Loaded before tslab, which sends messages without waiting for their end: every 512th may take the slow path, and
// then ZeroMQ refuses those that follow, or drops them when a reader is slow. A cell would lose output, or its end.
// Without a timeout and a limit a message is always taken at once.
"use strict";
const path = require("path");
const tslab = path.dirname(require("fs").realpathSync(process.argv[1]));
const zmq = require(require.resolve("zeromq", { paths: [tslab] }));

for (const name of ["Publisher", "Router"]) {
  zmq[name] = class extends zmq[name] {
    constructor(options) {
      super({ ...options, sendTimeout: 0, sendHighWaterMark: 0 });
    }
  };
}
