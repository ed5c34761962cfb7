"""Contexts and cells through the Python SDKs of the code interpreter. What is printed may come in pieces."""

from common import check, err, main, out, refused, same


def contexts(codes):
    codes.delete_contexts("python")
    same("no contexts", codes.list_contexts("python"), [])
    a, b = codes.create_context("python"), codes.create_context("python")
    check("a context has an id and a language", a.id and a.language == "python" and a.id != b.id, a)
    same("it can be asked for", codes.get_context(a.id), a)
    same("contexts are listed", sorted(c.id for c in codes.list_contexts("python")), sorted([a.id, b.id]))
    codes.run("x = 'a'", context=a)
    codes.run("x = 'b'", context=b)
    same("each has its own state", [codes.run("x", context=c).result[0].text for c in (a, b)], ["'a'", "'b'"])
    codes.delete_context(b.id)
    same("then one is left", [c.id for c in codes.list_contexts("python")], [a.id])
    refused("a deleted context", 404, lambda: codes.get_context(b.id))
    refused("can't be deleted again", 404, lambda: codes.delete_context(b.id))
    refused("runs nothing", 404, lambda: codes.run("1", context=b))
    refused("an unknown language", 400, lambda: codes.create_context("cobol"))
    refused("an unknown language of a run", 400, lambda: codes.run("1", language="cobol"))
    return a


def results(codes, context):
    run = lambda code: codes.run(code, context=context)  # noqa: E731
    e = run("import sys\nprint('hi'); print('oops', file=sys.stderr); 6 * 7")
    same("output and value", ("".join(out(e)), "".join(err(e)), [r.text for r in e.result]), ("hi\n", "oops\n", ["42"]))
    same("it ended well", (e.id, e.error), (context.id, None))
    check("with its duration", e.complete and e.complete.execution_time_in_millis >= 0, e.complete)
    same("the counter grows", run("1").execution_count, e.execution_count + 1)
    same("text", run("print('a'); print(); print('b'); 'c'").text, "a\n\nb\n'c'")
    e = run("def f():\n    raise ValueError('bad é')\nf()")
    same("an error", (e.error.name, e.error.value, e.complete), ("ValueError", "bad é", None))
    check("its traceback", "ValueError" in "".join(e.error.traceback), e.error)
    same("a syntax error", run("print(").error.name, "SyntaxError")
    e = run("from IPython.display import display, JSON, HTML\ndisplay(JSON({'a': [1]})); display(HTML('<b>'))\n{'t': 1}")
    same("displays of every type arrive", len(e.result), 3)
    same("the value's text", e.result[2].text, "{'t': 1}")
    e = run("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
    check("a plot arrives", "<Figure" in e.result[0].text, e.result)
    odd = "a\u0085b\u2028c\u2029d\x0be\x0cf\x1cg\x1dh\x1ei \\ \" é漢😀\r\n"
    same("odd separators", "".join(out(run(f"print({odd!r}, end='')"))), odd)
    same("odd separators in values", run(f"{odd!r}").result[0].text, repr(odd))
    same("a megabyte", "".join(out(run("print('é' * 500_000)"))), "é" * 500_000 + "\n")
    same("a cell without output", run("pass").text, "")
    e = run("input('name? ')")
    same("input() fails at once", e.error.name, "StdinNotImplementedError")
    same("and the next cell runs", "".join(out(run("print('next')"))), "next\n")


def defaults(codes):
    codes.run("d = 1")
    same("the default context of the default language", codes.run("d").result[0].text, "1")
    same("is that of its language", codes.run("d", language="python").result[0].text, "1")


def handlers(sdk, codes, context):
    seen = []
    note = lambda name, e: seen.append((name, getattr(e, "text", None)))  # noqa: E731
    codes.run("print(1, end='', flush=True)\nimport sys\nprint(2, end='', file=sys.stderr, flush=True)\n3", context=context, handlers=sdk.handlers(note))
    same("handlers of a success", seen,
         [("init", None), ("stdout", "1"), ("stderr", "2"), ("result", "3"), ("execution_complete", None)])
    seen.clear()
    codes.run("1/0", context=context, handlers=sdk.handlers(note))
    same("handlers of a failure", [name for name, _ in seen], ["init", "error"])


def interrupt(sdk, codes, context):
    codes.run("kept = 5", context=context)
    begun, future, seen = sdk.start(codes.run, "print('go', end='', flush=True)\nimport time\nwhile True: time.sleep(0.05)", context=context)
    same("a loop is up", seen.result(), "go")
    codes.interrupt(begun)
    same("an interrupted loop", future.result().error.name, "KeyboardInterrupt")
    same("the state is kept", codes.run("kept", context=context).result[0].text, "5")
    codes.interrupt(begun)
    check("an idle context can be interrupted", True)
    same("which harms nothing", codes.run("kept", context=context).result[0].text, "5")
    refused("an unknown one can't", 404, lambda: codes.interrupt("f" * 32))


def checks(sdk, folder):
    interpreter = sdk.interpreter()
    check("the interpreter is healthy", interpreter.ping() and interpreter.is_healthy())
    codes = interpreter.codes
    context = contexts(codes)
    results(codes, context)
    handlers(sdk, codes, context)
    interrupt(sdk, codes, context)
    defaults(codes)
    codes.delete_contexts("python")
    same("all contexts of a language are deleted", codes.list_contexts("python"), [])


main(checks)
