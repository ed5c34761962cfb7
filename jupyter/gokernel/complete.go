package gokernel

import (
	"go/token"
	"path"
	"slices"
	"strings"

	"github.com/traefik/yaegi/stdlib"
)

// complete returns how the name before the cursor may go on: members of a package of the standard library, else
// names that cells have declared and keywords. Positions count characters.
func (e *interpreter) complete(code string, cursor int) (matches []string, from int) {
	text := []rune(code)
	cursor = max(0, min(cursor, len(text)))
	from = cursor
	for from > 0 && isName(text[from-1]) {
		from--
	}
	prefix := string(text[from:cursor])
	found := map[string]bool{}
	add := func(name string) {
		if strings.HasPrefix(name, prefix) {
			found[name] = true
		}
	}
	if from > 0 && text[from-1] == '.' {
		of := from - 1
		for of > 0 && isName(text[of-1]) {
			of--
		}
		name := string(text[of : from-1])
		for pkg, symbols := range stdlib.Symbols {
			if path.Base(pkg) != name {
				continue
			}
			for symbol := range symbols {
				if !strings.HasPrefix(symbol, "_") {
					add(symbol)
				}
			}
		}
	} else {
		for name := range e.cells.Globals() {
			add(name)
		}
		for t := token.BREAK; t <= token.VAR; t++ {
			add(t.String())
		}
		for pkg := range stdlib.Symbols {
			add(path.Base(pkg))
		}
	}
	matches = []string{}
	for name := range found {
		matches = append(matches, name)
	}
	slices.Sort(matches)
	return matches, from
}

func isName(r rune) bool {
	return r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r > 0x7f
}
