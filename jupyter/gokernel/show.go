package gokernel

import (
	"fmt"
	"go/ast"
	"strings"
)

// format returns the text of a value, empty for nil: there is nothing to show then.
func format(value any) string {
	switch value := value.(type) {
	case nil:
		return ""
	case string:
		return fmt.Sprintf("%q", value)
	case error:
		return value.Error()
	case fmt.Stringer:
		return value.String()
	}
	return fmt.Sprintf("%+v", value)
}

// prints says whether x is a call of one of fmt's printing functions, whose results are of no interest.
func prints(x ast.Expr) bool {
	call, ok := x.(*ast.CallExpr)
	if !ok {
		return false
	}
	of, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	pkg, ok := of.X.(*ast.Ident)
	return ok && pkg.Name == "fmt" && (strings.HasPrefix(of.Sel.Name, "Print") || strings.HasPrefix(of.Sel.Name, "Fprint"))
}
