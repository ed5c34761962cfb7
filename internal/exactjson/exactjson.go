// Package exactjson reads JSON that somebody else wrote into Go values as its description says, and says what is wrong
// in the words of that description. Unlike encoding/json it takes names of fields exactly as they are written, and
// misses those that must be there: fields of a struct whose tag has no omitempty. It never names a Go type.
//
//	var q struct{ Old string `json:"old"` }
//	err := exactjson.Decode([]byte(`{"OLD":"x"}`), &q, exactjson.Ignore) // old is missing
package exactjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Unknown says what happens to fields that the struct doesn't have.
type Unknown bool

// Either they mean nothing, or they are an error.
const (
	Ignore Unknown = false
	Refuse Unknown = true
)

// Decode reads text, one JSON value (RFC 8259), into what v points at. Structs, maps with string keys, slices and
// pointers are read as they are nested; everything else, and what has an UnmarshalJSON of its own, is left to
// encoding/json. null stands for an absent value. The error is for people; the other fields of its struct are set then.
func Decode(text []byte, v any, unknown Unknown) error {
	if !json.Valid(text) {
		return json.Unmarshal(text, new(json.RawMessage)) // says what is wrong
	}
	return unknown.value(bytes.TrimSpace(text), reflect.ValueOf(v).Elem(), "")
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// value reads one value, which is valid and has no space around it. at says where it is, as JavaScript would: envs["A"].
func (u Unknown) value(text []byte, v reflect.Value, at string) error {
	null := string(text) == "null"
	switch t := v.Type(); {
	case t.Kind() == reflect.Pointer:
		if null {
			return nil
		}
		v.Set(reflect.New(t.Elem()))
		return u.value(text, v.Elem(), at)
	case reflect.PointerTo(t).Implements(unmarshaler):
	case t.Kind() == reflect.Struct:
		if text[0] != '{' && !null {
			return wrong(v, text, at)
		}
		fields := members(text)
		if err := u.object(fields, v, at); err != nil {
			return err
		}
		if u == Refuse {
			return known(fields, t, at)
		}
		return nil
	case null:
		return nil
	case t.Kind() == reflect.Map && t.Key().Kind() == reflect.String:
		if text[0] != '{' {
			return wrong(v, text, at)
		}
		fields := members(text)
		v.Set(reflect.MakeMapWithSize(t, len(fields)))
		for _, f := range fields {
			element := reflect.New(t.Elem()).Elem()
			if err := u.value(f.value, element, fmt.Sprintf("%s[%.100q]", at, f.name)); err != nil {
				return err
			}
			v.SetMapIndex(reflect.ValueOf(f.name).Convert(t.Key()), element)
		}
		return nil
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		if text[0] != '[' {
			return wrong(v, text, at)
		}
		elements := members(text)
		v.Set(reflect.MakeSlice(t, len(elements), len(elements)))
		for i, e := range elements {
			if err := u.value(e.value, v.Index(i), fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
		return nil
	case t.Kind() == reflect.String && text[0] == '"':
		v.SetString(unquote(text))
		return nil
	}
	return leaf(text, v, at)
}

// member is a field of an object, or an element of an array, which has no name.
type member struct {
	name  string
	value []byte
}

// members returns what is in an object or an array that is valid; of null nothing.
func members(text []byte) []member {
	all := make([]member, 0, 4)
	for rest := text[1:]; text[0] != 'n'; {
		rest = bytes.TrimLeft(rest, " \t\r\n,")
		if rest[0] == '}' || rest[0] == ']' {
			break
		}
		var m member
		if text[0] == '{' {
			n := length(rest)
			m.name = unquote(rest[:n])
			rest = bytes.TrimLeft(rest[n:], " \t\r\n:")
		}
		n := length(rest)
		m.value, rest = rest[:n], rest[n:]
		all = append(all, m)
	}
	return all
}

// length returns how long the value is that text, which is valid, begins with.
func length(text []byte) int {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
			continue
		case c == '"':
			if quoted = !quoted; quoted || depth > 0 {
				continue
			}
			return i + 1
		case quoted:
			continue
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth--; depth == 0 {
				return i + 1
			}
			if depth < 0 {
				return i
			}
		case depth == 0 && (c == ',' || c <= ' '): // the end of a number or a word
			return i
		}
	}
	return len(text)
}

// unquote returns what a string stands for.
func unquote(text []byte) (s string) {
	if inner := text[1 : len(text)-1]; bytes.IndexByte(inner, '\\') < 0 && utf8.Valid(inner) {
		return string(inner)
	}
	json.Unmarshal(text, &s) // a string that is valid: never fails
	return s
}

// leaf reads what encoding/json reads as we want it.
func leaf(text []byte, v reflect.Value, at string) error {
	err := json.Unmarshal(text, v.Addr().Interface())
	switch {
	case err == nil:
		return nil
	case reflect.PointerTo(v.Type()).Implements(unmarshaler):
		if at == "" {
			return err
		}
		return fmt.Errorf("%s: %w", at, err)
	}
	return wrong(v, text, at)
}

// object reads the fields of a struct, those of embedded ones too. Of a name that is there more than once the last counts.
func (u Unknown) object(fields []member, v reflect.Value, at string) (first error) {
	note := func(err error) {
		if first == nil {
			first = err
		}
	}
	for i, f := range fieldsOf(v.Type()) {
		if f.embedded {
			note(u.object(fields, v.Field(i), at))
			continue
		}
		var text []byte
		for _, m := range slices.Backward(fields) {
			if m.name == f.name {
				text = m.value
				break
			}
		}
		switch {
		case text != nil && string(text) != "null":
			note(u.value(text, v.Field(i), below(at, f.name)))
		case !f.optional:
			note(errors.New(below(at, f.name) + " is missing"))
		}
	}
	return first
}

func below(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

// field is what a struct says of one of its fields.
type field struct {
	name               string
	optional, embedded bool
}

var fieldsOfTypes sync.Map // reflect.Type to []field, as they were found: the types don't change

func fieldsOf(t reflect.Type) []field {
	if known, ok := fieldsOfTypes.Load(t); ok {
		return known.([]field)
	}
	all := make([]field, t.NumField())
	for i := range all {
		f := t.Field(i)
		name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
		all[i] = field{name, strings.Contains(rest, "omitempty"), f.Anonymous}
	}
	fieldsOfTypes.Store(t, all)
	return all
}

// known refuses a field that the struct doesn't have.
func known(fields []member, t reflect.Type, at string) error {
	var names []string
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
	}
	for _, f := range fields {
		if !slices.Contains(names, f.name) {
			return fmt.Errorf("unknown field %s", strings.TrimPrefix(fmt.Sprintf("%s.%.100q", at, f.name), "."))
		}
	}
	return nil
}

// wrong says what should have been there.
func wrong(v reflect.Value, text []byte, at string) error {
	if at == "" {
		at = "it"
	}
	want := "different"
	switch v.Kind() {
	case reflect.String:
		want = "a string"
	case reflect.Bool:
		want = "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		want = "a whole number"
		if len(bytes.Trim(text, "-0123456789")) == 0 { // it is one
			want += fmt.Sprintf(" that fits into %d bits", v.Type().Bits())
		}
	case reflect.Float32, reflect.Float64:
		want = "a number"
	case reflect.Struct, reflect.Map:
		want = "an object"
	case reflect.Slice:
		want = "an array"
		if v.Type().Elem().Kind() == reflect.Uint8 {
			want = "a string in base64"
		}
	}
	return fmt.Errorf("%s must be %s", at, want)
}
