package celld_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/celld/celld"

// mayImport says which of our packages each of our packages may import, test files apart. A package stands for
// those below it that have no line of their own, and may import them. "*" is everything.
var mayImport = map[string][]string{
	"cmd/celld":           {"*"},
	"server":              {"backends", "hooks", "files", "hostinfo", "openapi", "internal/exactjson"},
	"backends":            {"hooks", "shellrun", "ptyrun", "sqlrun", "jupyter"},
	"jupyter":             {"hooks", "internal/proctree"},
	"shellrun":            {"internal/proctree"},
	"ptyrun":              {"internal/proctree"},
	"sqlrun":              {"internal/proctree"},
	"hooks":               {},
	"files":               {"internal/exactjson"},
	"hostinfo":            {},
	"openapi":             {},
	"internal/exactjson":  {},
	"internal/proctree":   {},
	"openapi/openapitest": {"openapi"}, // tests only, see below
	"cmd/celld-gokernel":  {"jupyter/gokernel"},
	"jupyter/gokernel":    {},
	"bench":               {"openapi", "hooks"},
	"internal/demo":       {"openapi", "hooks"},
}

// testOnly are packages that only tests may import.
var testOnly = []string{"openapi/openapitest"}

// notInDaemon are modules that must not end up in the daemon.
var notInDaemon = []string{"github.com/getkin/kin-openapi", "go.uber.org/goleak", "pgregory.net/rapid"}

// onlyIn are modules that few packages may know.
var onlyIn = map[string][]string{"github.com/labstack/echo": {"server", "cmd/celld"}}

// mayInit are the files with an init function: celld's main goroutine has to be bound to its thread before main.
var mayInit = []string{"cmd/celld/main.go"}

var badNames = []string{"util", "utils", "common", "model", "models", "manager", "helper", "helpers", "types"}

// goPackage is what go list says of a package.
type goPackage struct {
	ImportPath string
	Name       string
	Dir        string
	GoFiles    []string
	Imports    []string
}

func list(t *testing.T, args ...string) []goPackage {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Name,Dir,GoFiles,Imports"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %v: %v", args, err)
	}
	var all []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// ours returns the path below the module, and whether it is one of our packages.
func ours(importPath string) (string, bool) {
	return strings.CutPrefix(importPath, module+"/")
}

// component returns the line of mayImport that a package belongs to.
func component(pkg string) (string, bool) {
	for p := pkg; p != "."; p = path.Dir(p) {
		if _, ok := mayImport[p]; ok {
			return p, true
		}
	}
	return "", false
}

// allowed says whether a package may import another of ours; if not, why.
func allowed(from, to string) error {
	a, ok := component(from)
	if !ok {
		return fmt.Errorf("%s has no line in mayImport: say there what it may import", from)
	}
	b, _ := component(to)
	if slices.Contains(testOnly, b) && a != b {
		return fmt.Errorf("%s imports %s, which is for tests only", from, to)
	}
	if a == b || slices.Contains(mayImport[a], "*") || slices.Contains(mayImport[a], b) {
		return nil
	}
	return fmt.Errorf("%s imports %s; it may import %v", from, to, mayImport[a])
}

func TestPackagesImportOnlyWhatTheDesignAllows(t *testing.T) {
	for _, p := range list(t, "./...") {
		from, ok := ours(p.ImportPath)
		if !ok {
			continue // the root: tests only
		}
		if _, ok := component(from); !ok {
			t.Errorf("%s has no line in mayImport: say there what it may import", from)
		}
		for _, imp := range p.Imports {
			if to, ok := ours(imp); ok {
				if err := allowed(from, to); err != nil {
					t.Error(err)
				}
			}
			for mod, only := range onlyIn {
				if strings.HasPrefix(imp, mod) && !slices.Contains(only, from) {
					t.Errorf("%s imports %s; only %v may", from, imp, only)
				}
			}
		}
	}
}

func TestImportRuleRefusesWhatItShould(t *testing.T) {
	for _, c := range [][2]string{
		{"hooks", "backends"}, {"shellrun", "hooks"}, {"server", "shellrun"}, {"backends", "server"},
		{"server", "openapi/openapitest"}, {"jupyter", "jupyter/gokernel"}, {"newpackage", "hooks"}, {"bench", "server"},
	} {
		if allowed(c[0], c[1]) == nil {
			t.Errorf("%s may import %s", c[0], c[1])
		}
	}
	for _, c := range [][2]string{{"cmd/celld", "server"}, {"server", "hooks"}, {"backends", "jupyter"}, {"files/walk", "files"}} {
		if err := allowed(c[0], c[1]); err != nil {
			t.Error(err)
		}
	}
}

func TestDaemonHoldsNoTestModules(t *testing.T) {
	for _, p := range list(t, "-deps", "./cmd/...") {
		for _, mod := range notInDaemon {
			if strings.HasPrefix(p.ImportPath, mod) {
				t.Errorf("a program depends on %s, which is for tests only", p.ImportPath)
			}
		}
	}
}

func TestPackagesAreNamedAfterWhatTheyDo(t *testing.T) {
	for _, p := range list(t, "./...") {
		if slices.Contains(badNames, p.Name) || slices.Contains(badNames, path.Base(p.ImportPath)) {
			t.Errorf("package %s: the name says nothing", p.ImportPath)
		}
	}
}

func TestProgramsAreWhereTheyBelong(t *testing.T) {
	for _, p := range list(t, "./...") {
		pkg, _ := ours(p.ImportPath)
		if p.Name == "main" && path.Dir(pkg) != "cmd" && pkg != "bench" && pkg != "internal/demo" {
			t.Errorf("%s is a program; programs are in cmd, bench and internal/demo", pkg)
		}
	}
}

func mayHaveInit(file string) bool {
	return slices.ContainsFunc(mayInit, func(f string) bool { return strings.HasSuffix(file, "/"+f) })
}

func TestNoPackageHasInit(t *testing.T) {
	for _, p := range list(t, "./...") {
		for _, name := range p.GoFiles {
			file := filepath.Join(p.Dir, name)
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range parsed.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" && !mayHaveInit(file) {
					t.Errorf("%s has an init function", file)
				}
			}
		}
	}
}
