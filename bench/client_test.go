package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	frameInit     = "id: 1\nevent: init\ndata: {\"type\":\"init\",\"eid\":1,\"text\":\"ab\"}\n\n"
	frameComplete = "id: 9\nevent: execution_complete\ndata: {\"type\":\"execution_complete\",\"eid\":9}\n\n"
	frameError    = "id: 9\nevent: error\ndata: {\"type\":\"error\",\"eid\":9}\n\n"
)

func stdout(text string) string {
	return fmt.Sprintf("id: 2\nevent: stdout\ndata: {\"type\":\"stdout\",\"eid\":2,\"text\":\"%s\"}\n\n", text)
}

func TestCallsAreJudgedByTheirAnswer(t *testing.T) {
	c := call{path: "/command", body: "{}", payload: 5, lines: 2, says: "end"}
	for _, x := range []struct {
		name, answer string
		good         bool
	}{
		{"two lines", frameInit + stdout("QQQ") + stdout("QQ end") + frameComplete, true},
		{"one chunk of two lines", frameInit + stdout(`QQQ\nQQ end\n`) + frameComplete, true},
		{"a byte is missing", frameInit + stdout("QQQ") + stdout("Q end") + frameComplete, false},
		{"a line is missing", frameInit + stdout("QQQQQ end") + frameComplete, false},
		{"the text is missing", frameInit + stdout("QQQ") + stdout("QQ") + frameComplete, false},
		{"failed", frameInit + stdout("QQQ") + stdout("QQ end") + frameError, false},
		{"cut short", frameInit + stdout("QQQ") + stdout("QQ end"), false},
		{"nothing", "", false},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for i := range x.answer { // in the smallest pieces
				w.Write([]byte{x.answer[i]})
				w.(http.Flusher).Flush()
			}
		}))
		first := 0
		err := newPeer(server.URL, true).read(t.Context(), c, func() { first++ }, pace{})
		server.Close()
		if (err == nil) != x.good {
			t.Errorf("%s: %v", x.name, err)
		}
		if want := strings.Contains(x.answer, "Q"); (first == 1) != want {
			t.Errorf("%s: the first byte of output was seen %d times", x.name, first)
		}
	}
}

func TestRefusedCallsAreErrors(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	if err := newPeer(server.URL, true).do(t.Context(), command("true")); err == nil {
		t.Error("a call that was answered 404 is good")
	}
}

func TestBareHandlerRunsCommandsAndReportsTheirStatus(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(floorCommand))
	defer server.Close()
	p := newPeer(server.URL, false)
	c := pipeline(1000)
	if err := p.do(t.Context(), c); err != nil {
		t.Error(err)
	}
	c.payload++
	if err := p.do(t.Context(), c); err == nil {
		t.Error("a missing byte went unnoticed")
	}
	c = command("echo Q >&2")
	if c.payload = 1; p.do(t.Context(), c) != nil {
		t.Error("stderr is missing")
	}
	if err := p.do(t.Context(), command("exit 3")); err == nil || !strings.Contains(err.Error(), `exit status "3"`) {
		t.Errorf("exit 3 gives %v", err)
	}
}

func TestBareUploadAndDownload(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/files/upload", floorUpload)
	mux.HandleFunc("/files/download", floorDownload)
	server := httptest.NewServer(mux)
	defer server.Close()
	p, name := newPeer(server.URL, false), filepath.Join(t.TempDir(), "f")
	if _, err := p.upload(t.Context(), name, 100_000); err != nil {
		t.Error(err)
	}
	if err := makeFile(name, 100_000); err != nil {
		t.Fatal(err)
	}
	if err := p.download(t.Context(), name, 100_000); err != nil {
		t.Error(err)
	}
	if err := p.download(t.Context(), name, 100_001); err == nil {
		t.Error("a missing byte went unnoticed")
	}
}

func TestProcessesBelowAreFound(t *testing.T) {
	cmd := exec.Command("bash", "-c", "read -r line; sleep 3232 & echo; wait")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Write([]byte("\n"))
	out.Read(make([]byte, 1)) // now the sleep is there
	found, err := below(cmd.Process.Pid)
	if err != nil || len(found) != 1 || !found[0].alive() {
		t.Fatalf("below bash: %v %v", found, err)
	}
	if held, err := memory(cmd.Process.Pid, "VmRSS"); err != nil || held < 1e5 {
		t.Errorf("bash holds %v bytes, %v", held, err)
	}
	exec.Command("kill", fmt.Sprint(found[0].pid)).Run()
	cmd.Wait()
	if found[0].alive() {
		t.Error("a process that has been waited for is alive")
	}
}
