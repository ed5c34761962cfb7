package openapi

import (
	"encoding/json"
	"errors"
)

// NameOrNumber is a name, or a number in decimal. In JSON it is a string or a number.
type NameOrNumber string

// UnmarshalJSON takes a string or a number.
func (n *NameOrNumber) UnmarshalJSON(text []byte) error {
	var number json.Number
	if text[0] == '"' {
		return json.Unmarshal(text, (*string)(n))
	}
	if json.Unmarshal(text, &number) != nil {
		return errors.New("want a name or a number")
	}
	*n = NameOrNumber(number)
	return nil
}
