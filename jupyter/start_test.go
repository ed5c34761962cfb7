package jupyter

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// mortal makes a kernelspec in dir whose kernel dies at its first n starts, as one does whose ports were taken
// meanwhile, and is python's otherwise.
func mortal(t *testing.T, dir string, n int) {
	t.Helper()
	needPython(t)
	found, err := Locate(prefix(), nil)
	if err != nil {
		t.Fatal(err)
	}
	where := filepath.Join(dir, "kernels", "mortal")
	if err := os.MkdirAll(where, 0o755); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(`echo >>%[1]s/starts; [ $(wc -l <%[1]s/starts) -gt %[2]d ] || exec %[3]s -c "import ipykernel.kernelapp; exit(1)"; exec %[3]s -m ipykernel_launcher -f "$0"`, where, n, found.Python)
	spec, err := json.Marshal(map[string]any{
		"argv": []string{"bash", "-c", script, "{connection_file}"}, "display_name": "Mortal", "language": "python",
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(where, "kernel.json"), spec, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestKernelThatDiesAtItsStartIsStartedOnceMore(t *testing.T) {
	dir := t.TempDir()
	mortal(t, dir, 1)
	_, s := ownServer(t, func(c *ManagedConfig) { c.KernelDirs = []string{dir} })
	k := openOn(t, s, func(r *OpenRequest) { r.Language = "mortal" })
	want(t, k, "print(1)", "1\n")
}

func TestKernelThatDiesOnceItHasAnsweredTheServerIsStartedOnceMore(t *testing.T) {
	needPython(t)
	found, err := Locate(prefix(), nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "kernel.py")
	// The server connects a client as soon as the kernel has answered it on both channels.
	if err := os.WriteFile(program, []byte(`
import os, sys
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp

class Mortal(IPythonKernel):
    async def kernel_info_request(self, stream, ident, parent):
        if parent["header"]["username"] == "celld":
            os._exit(1)
        await super().kernel_info_request(stream, ident, parent)

    async def execute_request(self, stream, ident, parent):
        os._exit(1)

mark = sys.argv.pop(1)
first = not os.path.exists(mark)
open(mark, "w").close()
IPKernelApp.launch_instance(kernel_class=Mortal if first else IPythonKernel)
`), 0o600); err != nil {
		t.Fatal(err)
	}
	spec, err := json.Marshal(map[string]any{
		"argv": []string{found.Python, program, filepath.Join(dir, "started"), "-f", "{connection_file}"}, "display_name": "Mortal", "language": "mortal",
	})
	if err != nil {
		t.Fatal(err)
	}
	writeSpec(t, dir, "mortal", string(spec))
	_, s := ownServer(t, func(c *ManagedConfig) { c.KernelDirs = []string{dir} })
	k := openOn(t, s, func(r *OpenRequest) { r.Language = "mortal" })
	want(t, k, "print(1)", "1\n")
}

func TestKernelThatAlwaysDiesAtItsStartIsToldOf(t *testing.T) {
	dir := t.TempDir()
	mortal(t, dir, 1000)
	_, s := ownServer(t, func(c *ManagedConfig) { c.KernelDirs = []string{dir} })
	if _, err := s.Open(t.Context(), OpenRequest{ID: newID(), Language: "mortal", Cwd: dir}); err == nil {
		t.Fatal("opened")
	} else {
		failed(t, (&Kernel{}).notBegun(t.Context(), err), nameDied)
	}
}

func TestFreshKernelThatIsNeverReachedIsReplaced(t *testing.T) {
	f := &fake{t: t, script: func(c *fakeConn, id string) {
		c.send(shellChannel, "execute_reply", id, map[string]any{"status": "ok", "execution_count": 1})
		c.status(id, "idle")
	}}
	var mute atomic.Bool
	s := f.start(func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if mute.Load() && strings.HasSuffix(r.URL.Path, "/channels") {
				http.Error(w, "the kernel doesn't answer", http.StatusInternalServerError)
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	k := openOn(t, s)
	k.conn.close(&loss{name: nameDied, detail: "the kernel died", fresh: true})
	k.mu.Lock()
	k.session = Session{} // as after a death
	k.mu.Unlock()
	mute.Store(true)
	for range maxMissed {
		if _, err := cell(t, k, "1"); err == nil {
			t.Fatal("a kernel that can't be reached ran a cell")
		}
	}
	mute.Store(false)
	if _, err := cell(t, k, "1"); err != nil {
		t.Error(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var calls []string
	for _, c := range f.calls {
		if strings.Contains(c, "sessions") {
			calls = append(calls, c)
		}
	}
	const post, remove = "POST /api/sessions", "DELETE /api/sessions/s-1"
	if want := []string{post, post, remove, post}; !slices.Equal(calls, want) {
		t.Errorf("%q, want %q", calls, want)
	}
}

func TestKernelThatDiesAgainAndAgain(t *testing.T) {
	k := open(t)
	for range 5 {
		_, err := cell(t, k, "import os; os._exit(3)")
		failed(t, err, nameDied)
	}
	freshly(t, k)
}
