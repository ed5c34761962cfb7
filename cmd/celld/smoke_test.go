package main

import (
	"encoding/json"
	"net/http"
	"slices"
	"testing"

	"github.com/celld/celld/openapi/openapitest"
)

func TestCommandStreamsLinesAndTheExitStatus(t *testing.T) {
	d := start(t, launch{})
	o := d.command("echo hello; echo oops >&2; exit 3")
	if !slices.Equal(o.stdout, []string{"hello"}) || !slices.Equal(o.stderr, []string{"oops"}) {
		t.Errorf("stdout %q, stderr %q", o.stdout, o.stderr)
	}
	if o.failed() != "CommandExecError" || o.code != 3 {
		t.Errorf("ended with %+v", o.end)
	}
	d.python()
	if o := d.code("python", "print('hi')\n6*7"); o.out() != "hi\n" || len(o.results) != 1 || o.results[0].Results["text"] != "42" {
		t.Errorf("cell: %q %+v", o.out(), o.results)
	}
	if o := d.inSession("s", "cd /; x=5"); o.code != 0 {
		t.Errorf("session: %+v", o.end)
	}
	if o := d.inSession("s", "echo $PWD $x"); !slices.Equal(o.stdout, []string{"/ 5"}) {
		t.Errorf("session: %q", o.stdout)
	}
}

func TestEveryDescribedRouteIsThere(t *testing.T) {
	d := start(t, launch{raw: true})
	spec, err := openapitest.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range spec.Operations() {
		var e struct{ Code, Message string }
		resp := d.do(op.Method, op.Path, nil)
		json.NewDecoder(resp.Body).Decode(&e) // what isn't an error isn't one
		resp.Body.Close()
		if resp.StatusCode == http.StatusMethodNotAllowed || resp.StatusCode == http.StatusNotFound && e.Message == "no such path" {
			t.Errorf("%s %s is described but not served: %d", op.Method, op.Path, resp.StatusCode)
		}
	}
}
