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
	if err := json.Unmarshal(text, new(skip)); err != nil {
		return err // of the syntax
	}
	return unknown.value(text, reflect.ValueOf(v).Elem(), "")
}

// skip is any value, which nobody wants.
type skip struct{}

// UnmarshalJSON implements json.Unmarshaler.
func (*skip) UnmarshalJSON([]byte) error { return nil }

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// value reads one value. at says where it is, as JavaScript would: envs["A"].
func (u Unknown) value(text []byte, v reflect.Value, at string) error {
	null := bytes.Equal(bytes.TrimSpace(text), []byte("null"))
	switch t := v.Type(); {
	case t.Kind() == reflect.Pointer:
		if null {
			return nil
		}
		v.Set(reflect.New(t.Elem()))
		return u.value(text, v.Elem(), at)
	case reflect.PointerTo(t).Implements(unmarshaler):
	case t.Kind() == reflect.Struct:
		fields := map[string]json.RawMessage{}
		if json.Unmarshal(text, &fields) != nil {
			return wrong(v, text, at)
		}
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
		var fields map[string]json.RawMessage
		if json.Unmarshal(text, &fields) != nil {
			return wrong(v, text, at)
		}
		v.Set(reflect.MakeMapWithSize(t, len(fields)))
		for name, field := range fields {
			element := reflect.New(t.Elem()).Elem()
			if err := u.value(field, element, fmt.Sprintf("%s[%.100q]", at, name)); err != nil {
				return err
			}
			v.SetMapIndex(reflect.ValueOf(name).Convert(t.Key()), element)
		}
		return nil
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		var elements []json.RawMessage
		if json.Unmarshal(text, &elements) != nil {
			return wrong(v, text, at)
		}
		v.Set(reflect.MakeSlice(t, len(elements), len(elements)))
		for i, element := range elements {
			if err := u.value(element, v.Index(i), fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
		return nil
	}
	return leaf(text, v, at)
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

// object reads the fields of a struct, those of embedded ones too.
func (u Unknown) object(fields map[string]json.RawMessage, v reflect.Value, at string) (first error) {
	note := func(err error) {
		if first == nil {
			first = err
		}
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous {
			note(u.object(fields, v.Field(i), at))
			continue
		}
		name, optional := tag(f)
		where := strings.TrimPrefix(at+"."+name, ".")
		switch text, ok := fields[name]; {
		case ok && !bytes.Equal(text, []byte("null")):
			note(u.value(text, v.Field(i), where))
		case !optional:
			note(errors.New(where + " is missing"))
		}
	}
	return first
}

func tag(f reflect.StructField) (name string, optional bool) {
	name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name, strings.Contains(rest, "omitempty")
}

// known refuses a field that the struct doesn't have.
func known(fields map[string]json.RawMessage, t reflect.Type, at string) error {
	var names []string
	for _, f := range reflect.VisibleFields(t) {
		name, _ := tag(f)
		names = append(names, name)
	}
	for name := range fields {
		if !slices.Contains(names, name) {
			return fmt.Errorf("unknown field %s", strings.TrimPrefix(fmt.Sprintf("%s.%.100q", at, name), "."))
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
