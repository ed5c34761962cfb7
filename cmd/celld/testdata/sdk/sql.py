"""SQL through the code interpreter's SDK."""

import json

from common import check, main, same


def tables(execution):
    return [json.loads(r.text) for r in execution.result]


def checks(sdk, folder):
    codes = sdk.interpreter().codes
    context = codes.create_context("sql")
    same("a context", context.language, "sql")
    run = lambda code: codes.run(code, context=context)  # noqa: E731
    same("a statement without rows", tables(run("SET @v = 41")), [{"columns": ["affected_rows"], "rows": [[0]]}])
    e = run("SELECT @v + 1 AS n, 'é' AS s, NULL AS x, 18446744073709551615 AS big; SELECT 2 AS two")
    same("state, values, several sets", tables(e), [
        {"columns": ["n", "s", "x", "big"], "rows": [["42", "é", None, "18446744073709551615"]]}, {"columns": ["two"], "rows": [["2"]]}])
    check("it ended well", e.error is None and e.complete and e.id == context.id, e)
    e = run("SELECT 1 AS one; SELECT nope")
    same("what came before an error", tables(e), [{"columns": ["one"], "rows": [["1"]]}])
    check("an error", e.error.name == "DBQueryError" and "Unknown column" in e.error.value and e.error.traceback, e.error)
    pieces = tables(run("SELECT seq, REPEAT('x', 100) FROM seq_1_to_20000"))
    same("a large result is several", [int(r[0]) for t in pieces for r in t["rows"]], list(range(1, 20001)))
    codes.delete_context(context.id)
    same("then it is gone", codes.list_contexts("sql"), [])


main(checks)
