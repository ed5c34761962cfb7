package gokernel

import (
	"go/ast"
	"go/parser"
	"go/token"
)

const fileHead = "package p;"

// lasting returns the texts of the types and methods that a declaration declares, by name.
func lasting(declaration string) map[string]string {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", fileHead+declaration, parser.SkipObjectResolution)
	if err != nil {
		return nil // the interpreter says what is wrong
	}
	found := map[string]string{}
	text := func(n ast.Node) string {
		at := func(p token.Pos) int { return fset.PositionFor(p, false).Offset - len(fileHead) }
		return declaration[at(n.Pos()):at(n.End())]
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if t, ok := spec.(*ast.TypeSpec); ok {
					found["type "+t.Name.Name] = text(t)
				}
			}
		case *ast.FuncDecl:
			if d.Recv != nil && len(d.Recv.List) == 1 {
				found["method "+text(d.Recv.List[0].Type)+"."+d.Name.Name] = text(d)
			}
		}
	}
	return found
}

// importsIn returns the imports of a declaration, each with its name and path as they are written.
func importsIn(declaration string) ([]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), "", fileHead+declaration, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	var specs []string
	for _, spec := range file.Imports {
		text := spec.Path.Value
		if spec.Name != nil {
			text = spec.Name.Name + " " + text
		}
		specs = append(specs, text)
	}
	return specs, nil
}
