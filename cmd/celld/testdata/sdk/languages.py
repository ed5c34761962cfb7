"""Every language of the code interpreter's SDK: context, state, output, an error, the default context."""

from common import check, main, out, same

# language: sets x to 41; prints x + 1; fails; with this name
LANGUAGES = {
    "python": ("x = 41", "print(x + 1)", "raise KeyError('bad')", "KeyError"),
    "javascript": ("let x = 41", "console.log(x + 1)", "throw new RangeError('bad')", "RangeError"),
    "typescript": ("let x: number = 41", "console.log(x + 1)", "throw new RangeError('bad')", "RangeError"),
    "go": ('import "fmt"\nx := 41', "fmt.Println(x + 1)", 'panic("bad")', "Panic"),
    "java": ("int x = 41;", "System.out.println(x + 1);", 'throw new ArithmeticException("bad");', "java.lang.ArithmeticException"),
    "bash": ("x=41", "echo $((x + 1))", "(exit 3)", "CommandExecError"),
}


def checks(sdk, folder):
    codes = sdk.interpreter().codes
    for language, (sets, prints, fails, name) in LANGUAGES.items():
        context = codes.create_context(language)
        same(f"{language}: a context", context.language, language)
        same(f"{language}: no output", codes.run(sets, context=context).text, "")
        same(f"{language}: state and output", "".join(out(codes.run(prints, context=context))), "42\n")
        e = codes.run(fails, context=context).error
        check(f"{language}: an error", e and e.name == name and e.value and e.traceback, e)
        same(f"{language}: the state is kept", "".join(out(codes.run(prints, context=context))), "42\n")
        check(f"{language}: it is listed", context.id in [c.id for c in codes.list_contexts(language)])
        codes.delete_context(context.id)
        check(f"{language}: then it is gone", context.id not in [c.id for c in codes.list_contexts(language)])
    codes.run("y=1", language="bash")
    same("a default context", out(codes.run("echo $y", language="bash")), ["1\n"])


main(checks)
