// Commands, sessions, files and metrics through the JavaScript SDK: sandbox.mjs PACKAGES LIFECYCLE FOLDER. It prints a
// line for each check and ends with status 1 at the first that is wrong.
import fs from "node:fs";
import { createRequire } from "node:module";
import { isDeepStrictEqual } from "node:util";

const [packages, domain, folder] = process.argv.slice(2);
const { Sandbox, SandboxApiException } = createRequire(packages + "/")("@alibaba-group/opensandbox");

function wrong(name, seen) {
  console.log(`WRONG ${name}: ${seen}`);
  process.exit(1);
}

function check(name, ok, seen) {
  if (!ok) wrong(name, JSON.stringify(seen));
  console.log(`ok    ${name}`);
}

function same(name, got, want) {
  if (!isDeepStrictEqual(got, want)) wrong(name, `${JSON.stringify(got)}, want ${JSON.stringify(want)}`);
  console.log(`ok    ${name}`);
}

async function refused(name, status, promise) {
  let got;
  try {
    got = await promise;
  } catch (e) {
    if (!(e instanceof SandboxApiException)) wrong(name, e.stack);
    return same(name, [e.statusCode, e.message.length > 0], [status, true]);
  }
  wrong(name, `not refused but ${JSON.stringify(got)}`);
}

const out = (e) => e.logs.stdout.map((m) => m.text);
const err = (e) => e.logs.stderr.map((m) => m.text);

// until gives a promise and handlers that settle it with the first output; its id is known by then.
function until() {
  const seen = Promise.withResolvers ? Promise.withResolvers() : (() => {
    const p = {};
    p.promise = new Promise((resolve, reject) => Object.assign(p, { resolve, reject }));
    return p;
  })();
  let id;
  return { promise: seen.promise, handlers: { onInit: (e) => { id = e.id; }, onStdout: (m) => seen.resolve([id, m.text]) } };
}

async function foreground(c) {
  const limited = c.run("echo first; sleep 97.51", { timeoutSeconds: 8 }); // beside the others, for it to begin on any machine
  let e = await c.run("echo out; echo err >&2; exit 3");
  same("a failing command", [out(e), err(e), e.exitCode, e.error.name, e.error.value, e.complete], [["out"], ["err"], 3, "CommandExecError", "3", undefined]);
  e = await c.run("printf 'a\\n\\nb\\n'; true");
  same("text with an empty line", [out(e), e.exitCode, e.error], [["a", "\n", "b"], 0, undefined]);
  check("it has an id and a duration", e.id.length === 32 && e.complete.executionTimeMs >= 0, e);
  e = await c.run('pwd; echo "$A"', { workingDirectory: folder, envs: { A: "x 'y' \"z\"\nw" } });
  same("directory and environment", out(e), [folder, "x 'y' \"z\"", "w"]);
  const user = process.getuid() === 0 ? [65534, 65534] : [process.getuid(), process.getgid()];
  e = await c.run("id -u; id -g", { uid: user[0], gid: user[1], workingDirectory: "/" });
  same("user and group", out(e), user.map(String));
  e = await c.run("seq 1 100000");
  same("100,000 lines", out(e).join("\n"), Array.from({ length: 100000 }, (_, i) => i + 1).join("\n"));
  e = await c.run("printf 'a\\342\\200\\250b\\302\\205c\\n\\360\\237\\230\\200\\n'");
  same("odd separators and emoji", out(e), ["a\u2028b\u0085c", "😀"]);
  const seen = [];
  const note = (name) => () => { seen.push(name); };
  const handlers = { onInit: note("init"), onStdout: note("stdout"), onStderr: note("stderr"), onError: note("error"), onExecutionComplete: note("complete") };
  await c.run("echo a; echo b >&2", {}, handlers);
  await c.run("exit 1", {}, handlers);
  same("handlers", [seen[0], seen.slice(1, 3).sort(), seen.slice(3)], ["init", ["stderr", "stdout"], ["complete", "init", "error"]]);
  await refused("a missing directory", 400, c.run("true", { workingDirectory: "/no/such" }));
  await refused("a bad variable", 400, c.run("true", { envs: { "A B": "1" } }));
  e = await limited;
  same("a timeout", [out(e), e.error.name, e.exitCode === 0], [["first"], "CommandTimeout", false]);
}

async function background(c, endpoint) {
  const fifo = folder + "/fifo";
  await c.run(`mkfifo ${fifo}`);
  const e = await c.run(`read x <${fifo}; echo "got $x"; exit 4`, { background: true });
  same("a background command", [e.id.length, e.exitCode, e.error], [32, undefined, undefined]);
  let s = await c.getCommandStatus(e.id);
  same("it runs", [s.id, s.running, s.exitCode, s.finishedAt], [e.id, true, null, null]);
  fs.writeFileSync(fifo, "this\n");
  await fetch(`http://${endpoint.endpoint}/command/${e.id}/wait`, { method: "POST", body: '{"exit": true}', headers: { "content-type": "application/json", ...endpoint.headers } });
  s = await c.getCommandStatus(e.id);
  same("then it has ended", [s.running, s.exitCode, s.finishedAt >= s.startedAt], [false, 4, true]);
  same("its log", await c.getBackgroundCommandLogs(e.id), { content: "got this\n", cursor: 9 });
  same("the log from there on", await c.getBackgroundCommandLogs(e.id, 9), { content: "", cursor: 9 });
  await refused("status of an unknown command", 404, c.getCommandStatus("f".repeat(32)));
  await refused("log of an unknown command", 404, c.getBackgroundCommandLogs("f".repeat(32)));
  const up = until();
  const run = c.run("echo up; sleep 97.52", {}, up.handlers);
  const [id, text] = await up.promise;
  same("a command is up", text, "up");
  await c.interrupt(id);
  same("an interrupted command", (await run).error.name, "CommandInterrupted");
  await refused("what has ended can't be interrupted", 409, c.interrupt(id));
}

async function sessions(c) {
  const s = await c.createSession();
  let e = await c.runInSession(s, "cd /usr; x='a b'; f() { return 7; }");
  same("a run in a session", [e.id, e.exitCode], [s, 0]);
  e = await c.runInSession(s, 'echo "$PWD $x"; f');
  same("it keeps its state", [out(e), e.exitCode], [["/usr a b"], 7]);
  e = await c.runInSession(s, "sleep 97.53", { timeoutSeconds: 1 });
  same("a timeout ends the run", e.error.name, "CommandTimeout");
  same("not the session", out(await c.runInSession(s, 'echo "$x"')), ["a b"]);
  const up = until();
  const run = c.runInSession(s, "echo up; sleep 97.54", {}, up.handlers);
  await c.interrupt((await up.promise)[0]);
  same("an interrupted run", (await run).error.name, "CommandInterrupted");
  const other = await c.createSession({ workingDirectory: folder });
  same("a session's directory", out(await c.runInSession(other, "pwd")), [folder]);
  await c.deleteSession(other);
  await refused("a deleted session", 404, c.runInSession(other, "true"));
  await refused("can't be deleted again", 404, c.deleteSession(other));
  await c.deleteSession(s);
}

async function files(f) {
  const d = folder + "/files";
  await f.createDirectories([{ path: d + "/a/b", mode: 777 }, { path: d + "/c" }]);
  await f.writeFiles([{ path: d + "/a/t.txt", data: "één\ntwee\n", mode: 644 }, { path: d + "/n/x.bin", data: new Uint8Array([1, 255, 0]) }]);
  await f.writeFiles([{ path: d + "/a/s.bin", data: (async function* () { for (let i = 0; i < 100; i++) yield new Uint8Array(65536).fill(i); })() }]);
  same("modes and sizes", [fs.statSync(d + "/a/b").mode & 0o777, fs.statSync(d + "/a/t.txt").mode & 0o777, fs.statSync(d + "/a/s.bin").size], [0o777, 0o644, 6553600]);
  same("text", await f.readFile(d + "/a/t.txt"), "één\ntwee\n");
  same("lines", await f.readFile(d + "/a/t.txt", { offset: 2 }), "twee\n");
  same("a range", [...await f.readBytes(d + "/n/x.bin", { range: "bytes=1-1" })], [255]);
  let n = 0;
  for await (const chunk of f.readBytesStream(d + "/a/s.bin")) n += chunk.length;
  same("a stream", n, 6553600);
  const info = (await f.getFileInfo([d + "/n/x.bin"]))[d + "/n/x.bin"];
  check("a file", info.size === 3 && info.mode === 644 && info.type === "file" && info.modifiedAt instanceof Date, info);
  same("a listing", (await f.listDirectory({ path: d })).map((e) => e.path), ["/a", "/c", "/n"].map((x) => d + x));
  same("a search", (await f.search({ path: d, pattern: "**/*.txt" })).map((e) => e.path), [d + "/a/t.txt"]);
  await f.replaceContents([{ path: d + "/a/t.txt", oldContent: "twee", newContent: "two" }]);
  same("replaced and counted", await f.replaceContentsDetailed([{ path: d + "/a/t.txt", oldContent: "two", newContent: "2" }]), [{ path: d + "/a/t.txt", replacedCount: 1 }]);
  await f.setPermissions([{ path: d + "/a/t.txt", mode: 600 }]);
  await f.moveFiles([{ src: d + "/a/t.txt", dest: d + "/m/t" }]);
  same("moved", [fs.readFileSync(d + "/m/t", "utf8"), fs.statSync(d + "/m/t").mode & 0o777], ["één\n2\n", 0o600]);
  await refused("not onto what is there", 409, f.moveFiles([{ src: d + "/m/t", dest: d + "/a" }]));
  await refused("a missing file", 404, f.readFile(d + "/missing"));
  await f.deleteFiles([d + "/m/t"]);
  await f.deleteDirectories([d]);
  check("all deleted", !fs.existsSync(d));
}

try {
  const sandbox = await Sandbox.connect({ sandboxId: "the-sandbox", connectionConfig: { domain, protocol: "http", apiKey: "key" } });
  check("the sandbox is healthy", await sandbox.isHealthy());
  await foreground(sandbox.commands);
  await background(sandbox.commands, await sandbox.getEndpoint(44772));
  await sessions(sandbox.commands);
  await files(sandbox.files);
  if (process.env.METRICS) {
    const metrics = await sandbox.getMetrics();
    check("metrics", metrics.cpuCount > 0 && metrics.memoryTotalMiB > 0, metrics);
  }
  await sandbox.close();
} catch (e) {
  wrong("the calls return", e.stack);
}
console.log("done");
process.exit(0);
