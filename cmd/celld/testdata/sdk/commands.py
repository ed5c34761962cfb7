"""Commands and sessions through the Python SDKs."""

import os
from datetime import timedelta

from common import check, err, main, out, refused, same
from opensandbox.models.execd import RunCommandOpts

SHORT = timedelta(seconds=1)
LONG = timedelta(seconds=8)  # for a command to begin on any machine


def foreground(sdk, folder):
    run = sdk.sandbox.commands.run
    e = run("echo out; echo err >&2; exit 3")
    same("a failing command's exit code", e.exit_code, 3)
    same("its output", (out(e), err(e)), (["out"], ["err"]))
    same("its error", (e.error.name, e.error.value, e.complete), ("CommandExecError", "3", None))
    check("its error has a traceback", len(e.error.traceback) > 0)
    e = run("printf 'a\\n\\nb\\n'")
    same("an empty line", (out(e), e.exit_code, e.error), (["a", "\n", "b"], 0, None))
    same("text", run("printf 'a\\nb\\n'").text, "a\nb")
    check("it has an id and a duration", len(e.id) == 32 and e.complete.execution_time_in_millis >= 0, e)
    same("a silent command", (out(run("true")), run("true").exit_code), ([], 0))
    same("a list of arguments", out(run(["printf", "%s|", "a b", "$HOME", "é"])), ["a b|$HOME|é|"])
    e = run("pwd; echo \"$A\"", opts=RunCommandOpts(working_directory=folder, envs={"A": "x 'y' \"z\"\nw"}))
    same("directory and environment", out(e), [folder, "x 'y' \"z\"", "w"])
    uid, gid = (65534, 65534) if os.getuid() == 0 else (os.getuid(), os.getgid())
    e = run("id -u; id -g", opts=RunCommandOpts(uid=uid, gid=gid, working_directory="/"))
    same("user and group", out(e), [str(uid), str(gid)])
    e = run("kill -9 $$")
    same("death by a signal", (e.exit_code, e.error.name), (137, "CommandExecError"))
    e = run("seq 1 100000")
    same("100,000 lines", out(e), [str(n) for n in range(1, 100001)])
    e = run("printf 'a\\342\\200\\250b\\302\\205c\\n\\360\\237\\230\\200\\n'")
    same("odd separators and emoji", out(e), ["a\u2028b\u0085c", "😀"])
    e = run("printf 'a\\377b'")
    same("invalid UTF-8", out(e), ["a\ufffdb"])
    refused("a missing directory", 400, lambda: run("true", opts=RunCommandOpts(working_directory="/no/such")))
    refused("a bad variable", 400, lambda: run("true", opts=RunCommandOpts(envs={"A B": "1"})))


def handlers(sdk):
    seen = []
    note = lambda name, e: seen.append(name)  # noqa: E731
    sdk.sandbox.commands.run("echo a; echo b >&2", handlers=sdk.handlers(note))
    same("handlers of a success", [seen[0], sorted(seen[1:3]), seen[3:]], ["init", ["stderr", "stdout"], ["execution_complete"]])
    seen.clear()
    e = sdk.sandbox.commands.run("echo a; exit 1", handlers=sdk.handlers(note, skip_accumulation=True))
    same("handlers of a failure", seen, ["init", "stdout", "error"])
    same("nothing is kept when it isn't wanted", out(e), [])


def background(sdk, folder):
    commands = sdk.sandbox.commands
    fifo = os.path.join(folder, "fifo")
    os.mkfifo(fifo)
    text = f"read x <{fifo}; echo \"got $x\"; echo oops >&2; exit 4"
    e = commands.run(text, opts=RunCommandOpts(background=True))
    check("a background command has an id and no exit code yet", e.id and e.exit_code is None and e.error is None, e)
    s = commands.get_command_status(e.id)
    same("it runs", (s.id, s.running, s.exit_code, s.content, s.finished_at), (e.id, True, None, text, None))
    with open(fifo, "w") as f:
        f.write("this\n")
    sdk.ended(e.id)
    s = commands.get_command_status(e.id)
    same("then it has ended", (s.running, s.exit_code), (False, 4))
    check("its times have zones", s.finished_at >= s.started_at and s.started_at.tzinfo is not None, s)
    logs = commands.get_background_command_logs(e.id)
    same("its log", sorted(logs.content.splitlines()), ["got this", "oops"])
    same("the cursor counts bytes", logs.cursor, len(logs.content.encode()))
    rest = commands.get_background_command_logs(e.id, cursor=logs.cursor)
    same("the log from there on", (rest.content, rest.cursor), ("", logs.cursor))
    rest = commands.get_background_command_logs(e.id, cursor=4)
    same("the log from the middle", rest.content, logs.content[4:])
    e = commands.run("sleep 97.42", opts=RunCommandOpts(background=True, timeout=SHORT))
    sdk.ended(e.id)
    s = commands.get_command_status(e.id)
    check("a timeout ends it", not s.running and s.exit_code not in (0, None) and "CommandTimeout" in s.error, s)
    foreground = commands.run("echo képt")
    same("foreground commands have logs", commands.get_background_command_logs(foreground.id).content, "képt\n")
    same("and a status", commands.get_command_status(foreground.id).exit_code, 0)
    refused("status of an unknown command", 404, lambda: commands.get_command_status("f" * 32))
    refused("log of an unknown command", 404, lambda: commands.get_background_command_logs("f" * 32))


def interrupt(sdk):
    commands = sdk.sandbox.commands
    command, future, seen = sdk.start(commands.run, "echo up; sleep 97.43")
    same("a command is up", seen.result(), "up")
    commands.interrupt(command)
    e = future.result()
    same("an interrupted command", (e.error.name, e.complete), ("CommandInterrupted", None))
    same("it has ended", commands.get_command_status(command).running, False)
    refused("what has ended can't be interrupted", 409, lambda: commands.interrupt(command))
    refused("nor what never was", 404, lambda: commands.interrupt("f" * 32))
    e = commands.run("sleep 97.44", opts=RunCommandOpts(background=True))
    commands.interrupt(e.id)
    check("a background command too", not commands.get_command_status(e.id).running)


def variables(sdk):
    commands = sdk.sandbox.commands
    commands.set_env("KEPT", "v w $HOME \\n #")
    commands.set_env("QUOTED", "it's \"q\"\n\\t")
    commands.set_env("KEPT2", "")
    e = commands.run("printf '%s|' \"$KEPT\" \"$QUOTED\" \"${KEPT2-unset}\"")
    same("set_env holds for commands", e.text, "v w $HOME \\n #|it's \"q\"\n\\t||")
    session = commands.create_session()
    same("and for sessions", out(commands.run_in_session(session, "echo \"$KEPT\"")), ["v w $HOME \\n #"])
    commands.delete_session(session)
    e = commands.run("echo \"$KEPT\"", opts=RunCommandOpts(envs={"KEPT": "own"}))
    same("a request's own variables win", out(e), ["own"])


def sessions(sdk, folder):
    commands = sdk.sandbox.commands
    run = commands.run_in_session
    s = commands.create_session()
    e = run(s, "cd /usr; x='a b'; f() { echo \"f $1\"; }; exit_code() { return 7; }")
    same("a run in a session", (e.id, e.exit_code, out(e)), (s, 0, []))
    e = run(s, "echo \"$PWD $x\"; f 1; echo err >&2; exit_code")
    same("it keeps its state", (out(e), err(e), e.exit_code), (["/usr a b", "f 1"], ["err"], 7))
    same("a run's directory", out(run(s, "pwd", working_directory="/etc")), ["/etc"])
    e = run(s, "sleep 97.45", timeout=SHORT)
    check("a timeout ends the run", e.error.name == "CommandTimeout" and e.exit_code not in (0, None), e)
    same("not the session", out(run(s, "echo \"$x\"")), ["a b"])
    seen = []
    run(s, "echo a; echo b >&2; false", handlers=sdk.handlers(lambda name, e: seen.append(name)))
    same("handlers", [seen[0], sorted(seen[1:3]), seen[3:]], ["init", ["stderr", "stdout"], ["error"]])
    same("syntax errors", run(s, "echo 'oops").exit_code, 2)
    session, future, began = sdk.start(run, s, "echo up; sleep 97.46")
    same("a run is up", began.result(), "up")
    commands.interrupt(session)
    same("an interrupted run", future.result().error.name, "CommandInterrupted")
    same("the session goes on", out(run(s, "echo \"$x\"")), ["a b"])
    other = commands.create_session(working_directory=folder)
    same("a session's directory", out(run(other, "pwd; echo \"[$x]\"")), [folder, "[]"])
    commands.delete_session(other)
    refused("a deleted session", 404, lambda: run(other, "true"))
    refused("can't be deleted again", 404, lambda: commands.delete_session(other))
    refused("a session in a missing directory", 400, lambda: commands.create_session(working_directory="/no/such"))
    refused("a run in a missing directory", 400, lambda: run(s, "true", working_directory="/no/such"))
    commands.delete_session(s)


def checks(sdk, folder):
    check("the sandbox is healthy", sdk.sandbox.is_healthy())
    _, limited, _ = sdk.start(sdk.sandbox.commands.run, "echo first; sleep 97.41", opts=RunCommandOpts(timeout=LONG))
    foreground(sdk, folder)
    handlers(sdk)
    background(sdk, folder)
    interrupt(sdk)
    sessions(sdk, folder)
    variables(sdk)
    e = limited.result()
    same("a timeout keeps what was printed", (out(e), e.error.name), (["first"], "CommandTimeout"))
    check("and is no success", e.exit_code not in (0, None), e.exit_code)


main(checks)
