package jupyter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/celld/celld/hooks"
)

func TestKernelsStartCleanAndEndCompletely(t *testing.T) {
	needPython(t)
	client, err := shared.managed.Client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	opened := map[string]bool{}
	for range 15 {
		k, err := shared.server.Open(t.Context(), OpenRequest{ID: newID(), Language: "python", Cwd: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		want(t, k, "assert 'v' not in globals(); v = 1", "")
		opened[k.KernelID()] = true
		if err := k.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	kernels, err := client.Kernels(t.Context())
	if err != nil || len(opened) != 15 {
		t.Errorf("opened %v; %v", opened, err)
	}
	for _, k := range kernels {
		if opened[k.ID] {
			t.Errorf("%s is left", k.ID)
		}
	}
}

func TestSessionIsTheNotebookInTheDirectory(t *testing.T) {
	for _, name := range []string{"plain", "with blank é", ".hidden/deep", "100%[x]#?"} {
		dir := filepath.Join(t.TempDir(), name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		k := open(t, func(r *OpenRequest) { r.Cwd = dir })
		want(t, k, "import os; print(os.getcwd())", dir+"\n")
		client, err := shared.managed.Client(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		sessions, err := client.Sessions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		path := strings.TrimPrefix(dir, "/") + "/" + k.ID() + ".ipynb"
		i := slices.IndexFunc(sessions, func(s Session) bool { return s.Path == path })
		if i < 0 || sessions[i].Kernel.ID != k.KernelID() {
			t.Errorf("no session %q in %+v", path, sessions)
		}
	}
}

func TestEnvironmentHoldsWhatWasGivenAndNoSecrets(t *testing.T) {
	k := open(t, func(r *OpenRequest) {
		r.Env = map[string]string{"A": "x\ny'z\"é😀", "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "0", "BIG": strings.Repeat("b", 100_000)}
	})
	p := want(t, k, "import os, time; print([os.environ['A'], time.tzname[0], len(os.environ['BIG'])])", "['x\\ny\\'z\"é😀', 'JST', 100000]\n")
	if c := p.statuses(hooks.StateCount); len(c) != 1 || c[0].Count != 1 {
		t.Errorf("count %+v", c)
	}
	want(t, k, `import re, subprocess
def names(pid):
    with open(f'/proc/{pid}/environ', 'rb') as f: return [e.split(b'=')[0].decode() for e in f.read().split(b'\0')]
mine = names('self') + list(os.environ) + subprocess.run(['env'], capture_output=True, text=True).stdout.split()
print(sorted({n.split('=')[0] for n in mine if re.match('(CELLD|EXECD|JUPYTER|OTEL)_', n)}))`, "['CELLD_EXECUTION_ID']\n")
	client, err := shared.managed.Client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want(t, k, fmt.Sprintf(`token = '%s'+'%s'
def holds(path):
    try:
        with open(path, 'rb') as f: return token.encode() in f.read()
    except OSError: return False
import glob
print([p for n in ('environ', 'cmdline') for p in glob.glob(f'/proc/[0-9]*/{n}') if holds(p)])
print([p for p in glob.glob('%s/**', recursive=True, include_hidden=True) if os.path.isfile(p) and holds(p)])`,
		client.token[:9], client.token[9:], shared.dir), "[]\n[]\n")
}

func TestKernelspecIsFoundByNameAliasAndLanguage(t *testing.T) {
	specs := map[string]Kernelspec{}
	for name, language := range map[string]string{"python3": "python", "zz": "Go", "gonb": "go", "conda": "python", "tslab": "typescript", "jslab": "javascript"} {
		specs[name] = Kernelspec{Name: name, Language: language}
	}
	s := NewServer(ServerConfig{
		Names:   map[string]string{"javascript": "jslab", "java": "absent"},
		Aliases: map[string]string{"py": "python", "js": "javascript", "ts": "typescript"},
	})
	for language, want := range map[string]string{
		"python3": "python3", "python": "conda", "py": "conda", "PY": "conda", "Python": "conda",
		"js": "jslab", "javascript": "jslab", "ts": "tslab", "TypeScript": "tslab", "go": "gonb", "GO": "gonb", "java": "", "rust": "",
	} {
		if spec, _ := s.find(specs, language); spec.Name != want {
			t.Errorf("%s: got %q, want %q", language, spec.Name, want)
		}
	}
}

func TestUnknownLanguageSaysWhatThereIs(t *testing.T) {
	needPython(t)
	_, err := shared.server.Open(t.Context(), OpenRequest{ID: newID(), Language: "cobol", Cwd: t.TempDir()})
	var none *NoKernelspecError
	if !errors.As(err, &none) || !slices.Contains(none.Available, "python3") {
		t.Errorf("got %v", err)
	}
}

func TestNewKernelspecIsFoundByRefreshing(t *testing.T) {
	needPython(t)
	dir := t.TempDir()
	_, s := ownServer(t, func(c *ManagedConfig) { c.KernelDirs = []string{dir} })
	if _, err := s.Kernelspec(t.Context(), "late"); err == nil {
		t.Fatal("found before it was there")
	}
	writeSpec(t, dir, "late", `{"argv": ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "L", "language": "late"}`)
	k := openOn(t, s, func(r *OpenRequest) { r.Language = "late" })
	want(t, k, "print(1)", "1\n")
}

func writeSpec(t *testing.T, dir, name, spec string) {
	t.Helper()
	dir = filepath.Join(dir, "kernels", name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kernel.json"), []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestKernelThatDiesAtItsStartIsToldSoon(t *testing.T) {
	needPython(t)
	dir := t.TempDir()
	writeSpec(t, dir, "broken", `{"argv": ["python", "-c", "import sys; sys.exit(1)", "{connection_file}"], "display_name": "B", "language": "broken"}`)
	writeSpec(t, dir, "absent", `{"argv": ["/nonexistent/kernel", "{connection_file}"], "display_name": "A", "language": "absent"}`)
	_, s := ownServer(t, func(c *ManagedConfig) { c.KernelDirs = []string{dir} })
	_, err := s.Open(t.Context(), OpenRequest{ID: newID(), Language: "broken", Cwd: dir})
	if !errors.Is(err, errDeadKernel) {
		t.Errorf("got %v", err)
	}
	var status *StatusError
	if _, err = s.Open(t.Context(), OpenRequest{ID: newID(), Language: "absent", Cwd: dir}); !errors.As(err, &status) {
		t.Errorf("got %v", err)
	}
	want(t, openOn(t, s), "print('fine')", "fine\n")
}

func TestInputIsAskedForAndAnswered(t *testing.T) {
	k := open(t)
	p, done := background(t, t.Context(), k, ExecuteRequest{Code: "from getpass import getpass\na = input('name? ')\nb = getpass('word? ')\nprint([a, b])", AllowStdin: true})
	asked := func(n int) hooks.Status {
		p.wait(t, func(p *tape) bool { return len(p.statuses(hooks.StateInput)) == n })
		return p.statuses(hooks.StateInput)[n-1]
	}
	if s := asked(1); s.Prompt != "name? " || s.Password {
		t.Errorf("%+v", s)
	}
	if err := k.Input(t.Context(), "é😀"); err != nil {
		t.Fatal(err)
	}
	if s := asked(2); s.Prompt != "word? " || !s.Password {
		t.Errorf("%+v", s)
	}
	if err := k.Input(t.Context(), "secret"); err != nil {
		t.Fatal(err)
	}
	if err := k.Input(t.Context(), "too much"); !errors.Is(err, ErrNoInput) {
		t.Errorf("got %v", err)
	}
	if err := <-done; err != nil || p.out() != "['é😀', 'secret']\n" {
		t.Errorf("%q, %v", p.out(), err)
	}
	if err := k.Input(t.Context(), "late"); !errors.Is(err, ErrNoInput) {
		t.Errorf("got %v", err)
	}
}

func TestInputFailsAtOnceUnlessAllowed(t *testing.T) {
	k := open(t)
	for _, code := range []string{"input('name? ')", "from getpass import getpass; getpass()"} {
		_, err := cell(t, k, code)
		failed(t, err, "StdinNotImplementedError")
		want(t, k, "print('ok')", "ok\n")
	}
}

func TestInterruptEndsACellThatWaitsForInput(t *testing.T) {
	k := open(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	p, done := background(t, ctx, k, ExecuteRequest{Code: "input('name? ')", AllowStdin: true})
	p.wait(t, func(p *tape) bool { return len(p.statuses(hooks.StateInput)) == 1 })
	cancel(errInterrupted)
	failed(t, <-done, "KeyboardInterrupt")
	want(t, k, "print('ok')", "ok\n")
	p, done = background(t, t.Context(), k, ExecuteRequest{Code: "print(input('again? '))", AllowStdin: true})
	p.wait(t, func(p *tape) bool { return len(p.statuses(hooks.StateInput)) == 1 })
	if err := k.Input(t.Context(), "yes"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || p.out() != "yes\n" {
		t.Errorf("%q, %v", p.out(), err)
	}
}

func TestCellsOfOneKernelRunOneAtATime(t *testing.T) {
	k := open(t)
	want(t, k, "counter = 0", "")
	seen := make([]string, 20)
	var wg sync.WaitGroup
	for i := range seen {
		wg.Go(func() {
			p, err := cell(t, k, "counter += 1; print(counter)")
			if err != nil {
				t.Error(err)
			}
			seen[i] = strings.TrimSpace(p.out())
		})
	}
	wg.Wait()
	slices.Sort(seen)
	if n := len(slices.Compact(seen)); n != 20 {
		t.Errorf("%d different values: %v", n, seen)
	}
}

func TestKernelsAtOnceDontMixTheirOutput(t *testing.T) {
	needPython(t)
	var wg sync.WaitGroup
	kernels := make([]*Kernel, 6)
	for i := range kernels {
		wg.Go(func() { kernels[i] = open(t) })
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for i, k := range kernels {
		wg.Go(func() {
			for n := range 20 {
				out := fmt.Sprintf("%d:%d\n", i, n)
				want(t, k, fmt.Sprintf("for _ in range(50): print('%d:%d')", i, n), strings.Repeat(out, 50))
			}
		})
	}
	wg.Wait()
}

func TestWaitingForTheTurnEndsWithItsContext(t *testing.T) {
	k := open(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	p, done := background(t, ctx, k, ExecuteRequest{Code: "import time\nprint('go', flush=True)\ntime.sleep(97)"})
	p.waitOut(t, "go")
	waiting, stop := context.WithCancelCause(t.Context())
	stop(errInterrupted)
	failed(t, k.Execute(waiting, ExecuteRequest{Code: "1"}, newTape()), nameStopped)
	cancel(errInterrupted)
	failed(t, <-done, "KeyboardInterrupt")
}

func TestSmallQuestionsAreAnswered(t *testing.T) {
	k := open(t)
	want(t, k, "verylongname = 5", "")
	reply, err := k.Complete(t.Context(), "veryl", 5)
	var completion struct{ Matches []string }
	if err != nil || json.Unmarshal(reply, &completion) != nil || !slices.Contains(completion.Matches, "verylongname") {
		t.Errorf("%s, %v", reply, err)
	}
	reply, err = k.Inspect(t.Context(), "verylongname", 3, 0)
	if err != nil || !strings.Contains(string(reply), `int`) {
		t.Errorf("%s, %v", reply, err)
	}
	reply, err = k.IsComplete(t.Context(), "for i in x:")
	if err != nil || !strings.Contains(string(reply), `"incomplete"`) {
		t.Errorf("%s, %v", reply, err)
	}
	if p := want(t, k, "1", ""); p.statuses(hooks.StateCount)[0].Count != 2 {
		t.Error("questions were counted")
	}
}
