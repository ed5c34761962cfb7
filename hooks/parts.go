package hooks

import "slices"

// maxPart is the size past which the MIME types of one result are spread over several events, in bytes.
const maxPart = 1 << 20

// Parts returns the MIME types of r, sorted, as they are spread over events: at least one, and several where they are
// large together. One value is never cut. Each part has a position of its own; r's is that of the last.
func (r *Result) Parts() [][]string {
	types, all := make([]string, 0, len(r.Data)), 0
	for mime, value := range r.Data {
		types, all = append(types, mime), all+len(value)
	}
	slices.Sort(types)
	if all <= maxPart {
		return [][]string{types}
	}
	var parts [][]string
	for {
		n, size := 0, 0
		for n < len(types) && (n == 0 || size+len(r.Data[types[n]]) <= maxPart) {
			size += len(r.Data[types[n]])
			n++
		}
		parts = append(parts, types[:n])
		if types = types[n:]; len(types) == 0 {
			return parts
		}
	}
}
