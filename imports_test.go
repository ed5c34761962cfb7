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
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/celld/celld"

// mayImport says which of our packages each of our packages may import, test files apart. A package stands for
// those below it that have no line of their own, and may import them. "*" is everything.
var mayImport = map[string][]string{
	"cmd/celld":           {"*"},
	"server":              {"backends", "hooks", "files", "hostinfo", "openapi"},
	"backends":            {"hooks", "shellrun", "ptyrun", "sqlrun", "jupyter"},
	"jupyter":             {"hooks", "internal/proctree"},
	"shellrun":            {"internal/proctree"},
	"ptyrun":              {"internal/proctree"},
	"sqlrun":              {"internal/proctree"},
	"hooks":               {},
	"files":               {},
	"hostinfo":            {},
	"openapi":             {},
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

// onlyIn are modules that one package alone may know.
var onlyIn = map[string]string{"github.com/labstack/echo": "server"}

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
				if strings.HasPrefix(imp, mod) && from != only {
					t.Errorf("%s imports %s; only %s may", from, imp, only)
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

func TestNoPackageHasInit(t *testing.T) {
	for _, p := range list(t, "./...") {
		for _, name := range p.GoFiles {
			file := filepath.Join(p.Dir, name)
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range parsed.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
					t.Errorf("%s has an init function", file)
				}
			}
		}
	}
}

// generated are folders that building and running make.
var generated = []string{"bin/", ".celld/", "demo-out/"}

var (
	inTicks  = regexp.MustCompile("`([^`\n]+)`")
	link     = regexp.MustCompile(`\]\(([^)#\s]+)(?:#[^)]*)?\)`)
	pathLike = regexp.MustCompile(`^\.{0,2}[A-Za-z0-9_./*-]+$`)
	fileExt  = regexp.MustCompile(`\.(go|md|sh|yaml|yml|json|py|mod|sum|txt|sql|ts|toml|Dockerfile)$`)
	makeRun  = regexp.MustCompile(`(?m)(?:^|[\s` + "`" + `])make ([a-z][a-z-]*)`)
	target   = regexp.MustCompile(`(?m)^([a-z][a-z-]*):`)
)

// documents returns the pages whose claims are checked, by name.
func documents(t *testing.T) map[string]string {
	t.Helper()
	docs := map[string]string{}
	for _, pattern := range []string{"AGENTS.md", "README.md", "docs/*.md"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			docs[name] = string(text)
		}
	}
	return docs
}

// namedPaths returns the paths of this repository that a page names, as seen from the root.
func namedPaths(page, text string) []string {
	var found []string
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		if !strings.Contains(m[1], ":") && !strings.HasPrefix(m[1], "/") {
			found = append(found, path.Join(path.Dir(page), m[1]))
		}
	}
	for _, m := range inTicks.FindAllStringSubmatch(text, -1) {
		for _, word := range strings.Fields(m[1]) {
			word = strings.TrimSuffix(strings.TrimPrefix(word, "./"), "/...")
			if pathLike.MatchString(word) && isOurPath(word) {
				found = append(found, word)
			}
		}
	}
	return found
}

// isOurPath tells a path of this repository from other words with slashes and dots: it begins with something that
// is there, or it is named like a file.
func isOurPath(word string) bool {
	if strings.HasPrefix(word, "/") || slices.ContainsFunc(generated, func(g string) bool { return strings.HasPrefix(word+"/", g) }) {
		return false
	}
	first, _, below := strings.Cut(word, "/")
	if below {
		if _, err := os.Stat(first); err == nil && first != ".." {
			return true
		}
	}
	return fileExt.MatchString(word)
}

// exists says whether a path, a pattern, or a bare file name anywhere in the tree is there.
func exists(t *testing.T, name string) bool {
	t.Helper()
	if m, err := filepath.Glob(name); err == nil && len(m) > 0 {
		return true
	}
	if strings.Contains(name, "/") {
		return false
	}
	found := false
	err := filepath.WalkDir(".", func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || slices.Contains(generated, d.Name()+"/")) {
			return filepath.SkipDir
		}
		if d.Name() == name {
			found = true
			return filepath.SkipAll
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestPathsNamedInTheDocsExist(t *testing.T) {
	for page, text := range documents(t) {
		for _, name := range namedPaths(page, text) {
			if !exists(t, name) {
				t.Errorf("%s names %s, which isn't there", page, name)
			}
		}
	}
}

func TestNamedPathsAreFound(t *testing.T) {
	text := "See [x](ARCHITECTURE.md#top), `go test ./hooks/...`, `./hooks/gone.go`, `GET /command/{id}`, `text/plain`, `gone.go`, `bin/celld`, [web](https://a.b/c.md)."
	got := namedPaths("docs/CONCURRENCY.md", text)
	want := []string{"docs/ARCHITECTURE.md", "hooks/gone.go", "gone.go"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if exists(t, "gone.go") || exists(t, "hooks/gone.go") || !exists(t, "imports_test.go") || !exists(t, "hooks/*.go") {
		t.Error("exists doesn't tell what is there")
	}
}

func TestMakeTargetsNamedInTheDocsExist(t *testing.T) {
	text, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, m := range target.FindAllStringSubmatch(string(text), -1) {
		targets = append(targets, m[1])
	}
	for page, text := range documents(t) {
		for _, m := range inTicks.FindAllString(text, -1) {
			for _, run := range makeRun.FindAllStringSubmatch(m, -1) {
				if !slices.Contains(targets, run[1]) {
					t.Errorf("%s names make %s, which the Makefile doesn't have", page, run[1])
				}
			}
		}
	}
}
