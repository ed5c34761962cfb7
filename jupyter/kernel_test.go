package jupyter

import (
	"encoding/json"
	"testing"

	"github.com/celld/celld/hooks"
)

func TestCellPrintsAndReturnsAValue(t *testing.T) {
	k := open(t)
	p := want(t, k, "import sys\nprint('hi'); print('no', file=sys.stderr)\nx = 40\nx + 2", "hi\n")
	if p.err() != "no\n" {
		t.Errorf("stderr %q", p.err())
	}
	rs := p.results()
	if len(rs) != 1 || string(rs[0].Data["text/plain"]) != `"42"` || rs[0].ExecutionCount != 1 {
		t.Errorf("results %+v", rs)
	}
	if c := p.statuses(hooks.StateCount); len(c) != 1 || c[0].Count != 1 {
		t.Errorf("counts %+v", c)
	}
	p = want(t, k, "_ + x", "")
	if rs := p.results(); len(rs) != 1 || string(rs[0].Data["text/plain"]) != `"82"` || rs[0].ExecutionCount != 2 {
		t.Errorf("results %+v", rs)
	}
}

func TestTypesOfJSONStayJSON(t *testing.T) {
	k := open(t)
	p := want(t, k, `from IPython.display import display, JSON, publish_display_data
display(JSON({'a':[1,2]}))
publish_display_data({'application/vnd.x.v1+json':[1,{'b':None}],'text/plain':'t','text/html':'<b>&</b>'})
40+2`, "")
	rs := p.results()
	if len(rs) != 3 {
		t.Fatalf("results %+v", rs)
	}
	var object struct{ A []int }
	if err := json.Unmarshal(rs[0].Data["application/json"], &object); err != nil || len(object.A) != 2 {
		t.Errorf("object: %s, %v", rs[0].Data["application/json"], err)
	}
	var list []any
	if err := json.Unmarshal(rs[1].Data["application/vnd.x.v1+json"], &list); err != nil || len(list) != 2 {
		t.Errorf("list: %s, %v", rs[1].Data["application/vnd.x.v1+json"], err)
	}
	var html string
	if err := json.Unmarshal(rs[1].Data["text/html"], &html); err != nil || html != "<b>&</b>" {
		t.Errorf("html: %q, %v", html, err)
	}
	if string(rs[2].Data["text/plain"]) != `"42"` || rs[2].ExecutionCount != 1 {
		t.Errorf("value: %+v", rs[2])
	}
}
