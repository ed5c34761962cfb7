package celld_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

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
		if errors.Is(err, fs.ErrNotExist) { // what other packages' tests have made is gone again
			return nil
		}
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

// undocumented returns what a file exports without a word on it. A group's comment stands for all in it; methods
// that an interface names are documented there.
func undocumented(file *ast.File) []string {
	var names []string
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Doc == nil && d.Name.IsExported() && d.Recv == nil {
				names = append(names, d.Name.Name)
			}
		case *ast.GenDecl:
			if d.Doc != nil {
				continue
			}
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					if s.Doc == nil && s.Name.IsExported() {
						names = append(names, s.Name.Name)
					}
				case *ast.ValueSpec:
					if s.Doc == nil && s.Comment == nil && s.Names[0].IsExported() {
						names = append(names, s.Names[0].Name)
					}
				}
			}
		}
	}
	return names
}

func TestExportedThingsAreDocumented(t *testing.T) {
	for _, p := range list(t, "./...") {
		packageDoc := len(p.GoFiles) == 0
		for _, name := range p.GoFiles {
			file := filepath.Join(p.Dir, name)
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			packageDoc = packageDoc || parsed.Doc != nil
			if ast.IsGenerated(parsed) {
				continue
			}
			for _, what := range undocumented(parsed) {
				t.Errorf("%s: %s has no comment", file, what)
			}
		}
		if !packageDoc {
			t.Errorf("package %s has no comment", p.ImportPath)
		}
	}
}

func TestUndocumentedFindsWhatHasNoComment(t *testing.T) {
	const src = `package p
// A is.
type A int
type B int
func C() {}
func (B) D() {}
const ( E = 1 )
// F and G are.
const ( F = 1; G = 2 )
var h int
`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", src, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := undocumented(file), []string{"B", "C", "E"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
