package main

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/celld/celld/openapi"
)

// TestBodiesAreTakenAsDescribed: fields that must be there are missed, names are taken exactly, and errors speak of
// fields and not of Go.
func TestBodiesAreTakenAsDescribed(t *testing.T) {
	d := start(t, launch{})
	f := d.ws + "/f"
	if err := os.WriteFile(f, []byte("aXb"), 0o644); err != nil {
		t.Fatal(err)
	}
	var instance openapi.ExecutionInstance
	d.call("GET", "/execution/instance", nil, &instance)
	for _, c := range []struct {
		path, body, message string
	}{
		{"/files/replace?verbose=true", `{"` + f + `":{"old":"X"}}`, "new is missing"},
		{"/files/replace", `{"` + f + `":{"Old":"X","new":""}}`, "old is missing"},
		{"/files/replace", `{"` + f + `":null}`, "old is missing"},
		{"/files/mv", `[{"src":"f","src_base64":"Zg==","dest":"g"}]`, "one of src and src_base64"},
		{"/files/mv", `[{"src":"f"}]`, "one of dest and dest_base64"},
		{"/files/permissions", `{"f":{"owner":[]}}`, `["f"].owner`},
		{"/code/input", `{"id":"x"}`, "value is missing"},
		{"/code/input", `{"value":"x"}`, "id is missing"},
		{"/code", `{"context":{"language":"bash"}}`, "code is missing"},
		{"/code/context", `{"Language":"bash"}`, "language is missing"},
		{"/code/context", `{"language":""}`, "language is empty"},
		{"/session", strings.Repeat(" ", 100) + `{"id":"a b"}`, "session id"},
		{"/session/default/run", `{"Command":"true"}`, "command is missing"},
		{"/session", `[]`, "an object"},
		{"/command", `{"Command":"true"}`, "command or argv is missing"},
		{"/command", `{"argv":[]}`, "argv must not be empty"},
		{"/command", `{"command":7}`, "command must be a string"},
		{"/command", `{"command":"true","timeout":"1"}`, "timeout must be a whole number"},
		{"/command", `{"command":"true","envs":{"A":1}}`, `envs["A"] must be a string`},
		{"/command/operations", `{"operation_id":"x","Command":"true"}`, `unknown field "Command"`},
		{"/command/operations", `{"command":"true"}`, "operation_id is missing"},
		{"/pty/operations", `{"operation_id":"x","Cols":1}`, `unknown field "Cols"`},
	} {
		var e openapi.Error
		status := d.call(http.MethodPost, c.path, c.body, &e)
		if status != http.StatusBadRequest || !strings.Contains(e.Message, c.message) || strings.Contains(e.Message, "openapi.") {
			t.Errorf("%s %s: %d %q, want 400 %s", c.path, c.body, status, e.Message, c.message)
		}
	}
	if text, err := os.ReadFile(f); err != nil || string(text) != "aXb" {
		t.Errorf("the file is %q now, %v", text, err)
	}

	s := d.open("/command", m{"command": "trap 'echo got it; exit' USR1; echo ready; while :; do read -r -t 1 <> <(:); done"})
	id := s.until(func(e event) bool { return e.Type == "init" }).Text
	s.until(prints("ready"))
	d.refused(http.StatusBadRequest, http.MethodPost, "/command/"+id+"/signal", m{"signal": true})
	d.refused(http.StatusBadRequest, http.MethodPost, "/command/"+id+"/signal", m{"signal": 0})
	d.refused(http.StatusBadRequest, http.MethodPost, "/command/"+id+"/signal", m{})
	if status := d.call(http.MethodPost, "/command/"+id+"/signal", m{"signal": 10}, nil); status != http.StatusOK {
		t.Errorf("signal 10: %d", status)
	}
	s.until(prints("got it"))

	k := d.socket(nil)
	for _, message := range []m{
		{"op": "input", "execution_id": id},
		{"op": "run", "ref": "r", "kind": "code", "Code": "1", "context": m{"language": "bash"}},
		{"op": "run", "ref": "r", "kind": "session", "session_id": "default"},
	} {
		k.send(message)
		if e := k.next(); e.Status != http.StatusBadRequest || !strings.Contains(e.Error.Evalue, "is missing") {
			t.Errorf("%v: %+v", message, e)
		}
	}
}
