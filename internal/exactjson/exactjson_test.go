package exactjson

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

type point struct {
	X int     `json:"x"`
	Y *string `json:"y,omitempty"`
}

type shape struct {
	point
	Name   string            `json:"name,omitempty"`
	Points []point           `json:"points,omitempty"`
	Env    map[string]string `json:"env,omitempty"`
	Sizes  map[string]int64  `json:"sizes,omitempty"`
	Data   []byte            `json:"data,omitempty"`
	On     *bool             `json:"on,omitempty"`
	Few    uint16            `json:"few,omitempty"`
	Odd    odd               `json:"odd,omitempty"`
	By     map[string]point  `json:"by,omitempty"`
}

// odd takes nothing but null.
type odd string

func (*odd) UnmarshalJSON([]byte) error { return fmt.Errorf("never right") }

func TestFieldsAreTakenAsTheyAreWritten(t *testing.T) {
	var got shape
	text := `{"x":1,"y":"z","NAME":"no","points":[{"x":2,"other":3},{"x":3}],"env":{"A":"b","a":"c"},"data":"eA==","on":true,` +
		`"few":9,"odd":null,"by":{"k":{"x":4}},"sizes":null,"x":5}`
	if err := Decode([]byte(text), &got, Ignore); err != nil {
		t.Fatal(err)
	}
	y, on := "z", true
	want := shape{point: point{5, &y}, Points: []point{{X: 2}, {X: 3}}, Env: map[string]string{"A": "b", "a": "c"},
		Data: []byte("x"), On: &on, Few: 9, By: map[string]point{"k": {X: 4}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestErrorsNameTheFieldAndWhatIsWanted(t *testing.T) {
	for _, c := range []struct {
		text    string
		unknown Unknown
		want    string
	}{
		{`{"X":1}`, Ignore, "x is missing"},
		{`{"x":null}`, Ignore, "x is missing"},
		{`null`, Ignore, "x is missing"},
		{`{"x":1,"X":1}`, Refuse, `unknown field "X"`},
		{`{"x":1,"points":[{"x":1,"z":1}]}`, Refuse, `unknown field points[0]."z"`},
		{`[]`, Ignore, "it must be an object"},
		{`{"x":"1"}`, Ignore, "x must be a whole number"},
		{`{"x":1.5}`, Ignore, "x must be a whole number"},
		{`{"x":99999999999999999999}`, Ignore, "x must be a whole number that fits into 64 bits"},
		{`{"x":1,"few":-1}`, Ignore, "few must be a whole number that fits into 16 bits"},
		{`{"x":1,"y":2}`, Ignore, "y must be a string"},
		{`{"x":1,"on":"true"}`, Ignore, "on must be true or false"},
		{`{"x":1,"points":{}}`, Ignore, "points must be an array"},
		{`{"x":1,"points":[{"x":1},{}]}`, Ignore, "points[1].x is missing"},
		{`{"x":1,"env":[]}`, Ignore, "env must be an object"},
		{`{"x":1,"env":{"A":1}}`, Ignore, `env["A"] must be a string`},
		{`{"x":1,"data":"?"}`, Ignore, "data must be a string in base64"},
		{`{"x":1,"odd":1}`, Ignore, "odd: never right"},
		{`{"x":1,"by":{"/f":null}}`, Ignore, `by["/f"].x is missing`},
		{`{"x":1`, Ignore, "unexpected end of JSON input"},
		{`{"x":1}x`, Refuse, "invalid character 'x' after top-level value"},
		{``, Ignore, "unexpected end of JSON input"},
	} {
		var v shape
		if err := Decode([]byte(c.text), &v, c.unknown); err == nil || err.Error() != c.want {
			t.Errorf("%s: %v, want %s", c.text, err, c.want)
		}
	}
}

func TestTextMayHoldAnything(t *testing.T) {
	for _, want := range []string{"", `"`, `\`, `\"`, `a\\"b`, "]}", "é\u2028", "a\xffb", strings.Repeat(`\`, 1001) + `"`, "a\nb"} {
		text, err := json.Marshal(map[string]any{"x": 1, "env": map[string]string{want: want}, "y": want, "points": []any{map[string]any{"x": 2, "y": want}}})
		if err != nil {
			t.Fatal(err)
		}
		for _, spaced := range []string{string(text), " \r\n" + strings.ReplaceAll(string(text), ":", " :\t") + "\n"} {
			var got shape
			want := strings.ToValidUTF8(want, "\ufffd")
			if err := Decode([]byte(spaced), &got, Refuse); err != nil || *got.Y != want || got.Env[want] != want || len(got.Env) != 1 || *got.Points[0].Y != want {
				t.Errorf("%s: %+v, %v", spaced, got, err)
			}
		}
	}
	var got shape
	if err := Decode([]byte("{\"x\":1,\"y\":\"a\xff\"}"), &got, Ignore); err != nil || *got.Y != "a\ufffd" {
		t.Errorf("invalid UTF-8: %v, %v", got.Y, err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(`{"x":1,"points":[{"x":1}],"env":{"A":"b"},"by":{"k":{"x":null}}}`, true)
	f.Add(` { "x" : -1e2 ,"points" : [ { "x" :1}	, {"x":2 } ] , "\u0078": "}\"]\\" , "env":{"\ud800":"\u00e9"}, "on": false } `, false)
	f.Fuzz(func(t *testing.T, text string, refuse bool) {
		var v shape
		if err := Decode([]byte(text), &v, Unknown(refuse)); err != nil && strings.Contains(err.Error(), "exactjson") {
			t.Errorf("%q: %v", text, err)
		}
		var got, want map[string]any
		if err := Decode([]byte(text), &got, Ignore); err == nil {
			if err := json.Unmarshal([]byte(text), &want); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%q: %v, want %v, %v", text, got, want, err)
			}
		}
	})
}
