// Loaded before tslab, which sends messages without waiting for their end: every 512th may take the slow path, and
// then ZeroMQ refuses those that follow, or drops them when a reader is slow. A cell would lose output, or its end.
// Without a timeout and a limit a message is always taken at once.
//
// What a timer or a promise of an earlier cell prints, tslab sends as output of the cell that runs. Here it stays that
// of its own cell, which is over.
//
// An interrupt that comes just as a script ends, Node.js keeps for the next script. Here that is one of ours.
"use strict";
const { AsyncLocalStorage } = require("async_hooks");
const path = require("path");
const vm = require("vm");
const tslab = path.dirname(require("fs").realpathSync(process.argv[1]));
const zmq = require(require.resolve("zeromq", { paths: [tslab] }));

for (const name of ["Publisher", "Router"]) {
  zmq[name] = class extends zmq[name] {
    constructor(options) {
      super({ ...options, sendTimeout: 0, sendHighWaterMark: 0 });
    }
  };
}

const { JupyterHandlerImpl: Handler } = require(path.join(tslab, "../dist/jupyter.js"));
const { handleExecuteImpl, createWriteToIopub } = Handler.prototype;
const cell = new AsyncLocalStorage(); // how the cell that the code belongs to writes

Handler.prototype.handleExecuteImpl = function (req, writeStream, writeDisplayData) {
  return cell.run(writeStream, () => handleExecuteImpl.call(this, req, writeStream, writeDisplayData));
};
Handler.prototype.createWriteToIopub = function (name, writeStream) {
  return createWriteToIopub.call(this, name, (stream, text) => (cell.getStore() ?? writeStream)(stream, text));
};

const { runInThisContext } = vm;
let interrupted = false; // since the last script began

process.on("SIGINT", () => {
  interrupted = true;
});
vm.runInThisContext = function (code, options) {
  if (interrupted) {
    interrupted = false;
    try {
      // It takes some hundredths of a second, in which the thread that hands on interrupts finds one if it is there.
      runInThisContext("for (let i = 0; i < 3e7; i++);", { breakOnSigint: true });
    } catch {} // it was there
  }
  try {
    return runInThisContext(code, options);
  } catch (e) {
    interrupted ||= e?.code === "ERR_SCRIPT_EXECUTION_INTERRUPTED";
    throw e;
  }
};

// What children print to inherited descriptors would go nowhere: they get pipes, and it is printed from here.
const children = require("child_process");
const { spawn, spawnSync, execSync, execFileSync } = children;

// piped returns options with pipes instead of inherited outputs, and by descriptor where that output belongs. Without
// any it is undefined.
function piped(options) {
  const stdio = Array.isArray(options?.stdio) ? [...options.stdio] : Array(3).fill(options?.stdio);
  const to = {};
  for (const fd of [1, 2]) {
    const own = stdio[fd] === "inherit" ? fd : (stdio[fd]?.fd ?? stdio[fd]);
    if (own === 1 || own === 2) {
      stdio[fd] = "pipe";
      to[fd] = own === 1 ? process.stdout : process.stderr;
    }
  }
  return Object.keys(to).length ? { options: { ...options, stdio }, to } : undefined;
}

// split tells a list of arguments, which may be missing, from options.
const split = (args, options) => (Array.isArray(args) ? [args, options] : [[], options ?? args]);

children.spawn = function (file, args, options) {
  [args, options] = split(args, options);
  const p = piped(options);
  const child = spawn(file, args, p ? p.options : options);
  for (const fd in p?.to) {
    child.stdio[fd].on("data", (data) => p.to[fd].write(data));
  }
  return child;
};

children.spawnSync = function (file, args, options) {
  [args, options] = split(args, options);
  const p = piped(options);
  if (!p) {
    return spawnSync(file, args, options);
  }
  const result = spawnSync(file, args, { ...p.options, maxBuffer: Infinity });
  for (const fd in result.output ? p.to : {}) {
    if (result.output[fd]?.length) {
      p.to[fd].write(result.output[fd]);
    }
    result.output[fd] = result[fd === "1" ? "stdout" : "stderr"] = null;
  }
  return result;
};

// checked returns what a child printed, or throws as Node.js does when it failed.
function checked(command, result) {
  if (result.error || result.status !== 0) {
    throw Object.assign(result.error ?? new Error(`Command failed: ${command}`), result);
  }
  return result.stdout;
}

children.execSync = (command, options) =>
  piped(options) ? checked(command, children.spawnSync(command, { shell: true, ...options })) : execSync(command, options);

children.execFileSync = function (file, args, options) {
  [args, options] = split(args, options);
  return piped(options) ? checked([file, ...args].join(" "), children.spawnSync(file, args, options)) : execFileSync(file, args, options);
};
