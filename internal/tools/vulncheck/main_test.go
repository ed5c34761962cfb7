package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestOnlyWhatIsCalledCounts(t *testing.T) {
	out := `{"osv":{"id":"GO-1","summary":"one"}} {"osv":{"id":"GO-2","summary":"two"}}
	{"finding":{"osv":"GO-1","trace":[{"module":"m","version":"v1","package":"m/p"}]}}
	{"finding":{"osv":"GO-2","fixed_version":"v3","trace":[{"module":"m","version":"v1","package":"m/p","function":"F"}]}}`
	got, err := calledVulns([]byte(out))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"GO-2": "two: m/p.F (m@v1, fixed in v3)"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := calledVulns([]byte(`{"finding":`)); err == nil {
		t.Error("half an answer was accepted")
	}
}

func TestOnlyWhatHasAReasonIsAllowed(t *testing.T) {
	allowed, err := readAllowed(write(t, "allow", "# why\n\nGO-1  never called with that\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := report(map[string]string{"GO-1": "x"}, allowed); err != nil {
		t.Errorf("the allowed one was refused: %v", err)
	}
	if err := report(map[string]string{"GO-1": "x", "GO-2": "y"}, allowed); err == nil {
		t.Error("the other one was accepted")
	}
	if _, err := readAllowed(write(t, "allow", "GO-1\n")); err == nil {
		t.Error("an entry without a reason was accepted")
	}
}

func TestIndexNamesEachModuleOnceAndNoWithdrawnEntry(t *testing.T) {
	src, dir := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"GO-1.json": `{"id":"GO-1","modified":"2024-01-01T00:00:00Z","affected":[{"package":{"name":"b"}},{"package":{"name":"a"}},{"package":{"name":"a"}}]}`,
		"GO-2.json": `{"id":"GO-2","modified":"2024-02-01T00:00:00Z","withdrawn":"2024-03-01T00:00:00Z","affected":[{"package":{"name":"c"}}]}`,
	} {
		if err := os.WriteFile(filepath.Join(src, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := index(src, dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "index", "modules.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got []moduleIndex
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	v := []moduleVulns{{ID: "GO-1", Modified: "2024-01-01T00:00:00Z"}}
	if want := []moduleIndex{{"a", v}, {"b", v}}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "index", "db.json")); err != nil || string(text) != `{"modified":"2024-02-01T00:00:00Z"}` {
		t.Errorf("db.json: %s, %v", text, err)
	}
}
